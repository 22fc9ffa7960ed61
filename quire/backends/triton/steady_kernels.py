"""Device code for decode rows of steady.py.

Compiled without fused multiply-adds (`enable_fp_fusion=False`): whether a compiler makes one
depends on the surrounding code, but kernels for prompts and for decode rows must round alike.
"""

from __future__ import annotations

from typing import Any

import triton.language as tl

from quire.backends.triton.decode_kernels import attend_item, merged_parts
from quire.backends.triton.jit import kernel, part
from quire.backends.triton.softmax import attend_stretch, finished, nothing_yet, with_sinks
from quire.backends.triton.steady_pieces import mean_of, num_pieces, piece_begin

FIELDS = tl.constexpr(8)  # of an item


@part
def _pieces_of(
    lengths: tl.tensor,
    starts: tl.tensor,
    row: tl.tensor,
    real: tl.tensor,
    window: tl.tensor,
    HAS_STARTS: tl.constexpr,
) -> Any:
    """(first piece that a row reads by itself, first that it sees, the one behind the last, the
    first token that it sees): a window hides what is behind it, 0 stands for none."""
    length = tl.load(lengths + row, mask=real, other=0).to(tl.int32)
    last = tl.maximum(num_pieces(length), 1)
    begin = tl.where(window > 0, tl.maximum(length - window, 0), 0)
    seen = num_pieces(begin + 1) - 1
    first = seen
    if HAS_STARTS:
        start = tl.load(starts + row, mask=real, other=0)
        first = tl.where(length > start, num_pieces(start), 0)
    return first, seen, last, begin


@kernel("num_rows", "num_items", "window")
def make_steady_items(
    lengths: tl.tensor,
    starts: tl.tensor,
    table_rows: tl.tensor,
    items: tl.tensor,
    total: tl.tensor,
    num_rows: tl.tensor,
    num_items: tl.tensor,
    window: tl.tensor,
    HAS_STARTS: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    ITEMS: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    """ITEMS items per program, row by row: (place of the row, begin, end, row of the table, number
    of the piece, how many items the row has, the piece behind its last, the first that it sees),
    and how many items in `total`. Of each row those pieces that come after `starts`, or that a
    window shows; one without tokens has one item without any."""
    item = tl.program_id(0) * ITEMS + tl.arange(0, ITEMS)
    owner, before = tl.zeros([ITEMS], tl.int32), tl.zeros([ITEMS], tl.int32)
    so_far = tl.full([], 0, tl.int32)
    for base in range(0, num_rows, ROWS):
        row = base + tl.arange(0, ROWS)
        real = row < num_rows
        first, _, last, _ = _pieces_of(lengths, starts, row, real, window, HAS_STARTS)
        count = tl.where(real, last - first, 0)
        ends = so_far + tl.cumsum(count, 0)
        passed = (ends[None, :] <= item[:, None]) & real[None, :]
        owner += tl.sum(passed.to(tl.int32), 1)
        before += tl.sum(tl.where(passed, count[None, :], 0), 1)
        so_far += tl.sum(count)
    if tl.program_id(0) == 0:
        tl.store(total, so_far)
    real = (item < so_far) & (item < num_items)
    first, seen, last, begin = _pieces_of(lengths, starts, owner, real, window, HAS_STARTS)
    number = first + item - before
    end = tl.load(lengths + owner, mask=real, other=0).to(tl.int32)
    table_row = owner
    if HAS_ROWS:
        table_row = tl.load(table_rows + owner, mask=real, other=0).to(tl.int32)
    place = items + item * FIELDS
    tl.store(place, owner, mask=real)
    tl.store(place + 1, tl.maximum(piece_begin(number), begin), mask=real)
    tl.store(place + 2, tl.minimum(piece_begin(number + 1), end), mask=real)
    tl.store(place + 3, table_row, mask=real)
    tl.store(place + 4, number, mask=real)
    tl.store(place + 5, last - first, mask=real)
    tl.store(place + 6, last, mask=real)
    tl.store(place + 7, seen, mask=real)


@part
def _merge(
    parts: tl.tensor,
    sums: tl.tensor,
    first: tl.tensor,
    count: tl.tensor,
    sinks: tl.tensor,
    out: tl.tensor,
    row: tl.tensor,
    kv_head: tl.tensor,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    GROUP_ROWS: tl.constexpr,
    SINKS: tl.constexpr,
) -> None:
    """Merge a row's pieces, first to last, into its output for the queries of a KV head."""
    top, weight, total = merged_parts(
        *(parts, sums, first, count, kv_head, KV_HEADS, GROUP, WIDTH, PADDED, 1, GROUP_ROWS)
    )
    query, at = tl.arange(0, GROUP_ROWS), tl.arange(0, PADDED)
    head, sink = kv_head * GROUP + query, 0.0
    if SINKS:
        sink = tl.load(sinks + head, mask=query < GROUP, other=0.0)
    made = mean_of(top, weight, total, sink, SINKS).to(out.dtype.element_ty)
    inside = (query < GROUP)[:, None] & (at < WIDTH)[None, :]
    place = (row * (KV_HEADS * GROUP) + head[:, None]) * WIDTH + at[None, :]
    tl.store(out + place, made, mask=inside)


@kernel("table_stride", "most")
def attend_steady_items(
    q: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    tables: tl.tensor,
    items: tl.tensor,
    total: tl.tensor,
    parts: tl.tensor,
    sums: tl.tensor,
    counters: tl.tensor,
    out: tl.tensor,
    sinks: tl.tensor,
    most: tl.tensor,
    table_stride: tl.tensor,
    q_stride: tl.tensor,
    scale: tl.tensor,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    QUERIES: tl.constexpr,
    SLOTS: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    GROUP_ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SINKS: tl.constexpr,
) -> None:
    """One item of one KV head after the other; programs take items in turn. The only piece of a row
    is its output; of several pieces, the program that computes the last one merges them, in their
    order."""
    head, query, at = tl.program_id(0), tl.arange(0, QUERIES), tl.arange(0, PADDED)
    inside = (query < GROUP)[:, None] & (at < WIDTH)[None, :]
    heads = head * GROUP + query
    for number in range(tl.program_id(1), tl.load(total), tl.num_programs(1)):
        item = items + number * FIELDS
        row, begin, end = tl.load(item).to(tl.int64), tl.load(item + 1), tl.load(item + 2)
        table = tables + tl.load(item + 3).to(tl.int64) * table_stride
        count, last, first = tl.load(item + 5), tl.load(item + 6), tl.load(item + 7)
        line = q + row * q_stride
        mine = tl.load(line + heads[:, None] * WIDTH + at[None, :], mask=inside, other=0.0)
        mean, log_sum = attend_item(
            *(mine, keys, values, table, begin, end, head, scale),
            *(QUERIES, KV_HEADS, SLOTS, KEYS, WIDTH, PADDED, PRECISION, SOFTCAP, True),
        )
        if last - first == 1:
            if SINKS:
                sink = tl.load(sinks + heads, mask=query < GROUP, other=0.0)
                mean, log_sum = with_sinks(mean, log_sum, sink)
            own = out + (row * (KV_HEADS * GROUP) + heads[:, None]) * WIDTH + at[None, :]
            tl.store(own, mean.to(out.dtype.element_ty), mask=inside)
        else:
            spot = (row * most + tl.load(item + 4)) * (KV_HEADS * GROUP) + heads
            tl.store(parts + spot[:, None] * WIDTH + at[None, :], mean, mask=inside)
            tl.store(sums + spot, log_sum, mask=query < GROUP)
            tl.debug_barrier()
            counter = counters + row * KV_HEADS + head
            if tl.atomic_add(counter, 1, sem="acq_rel") == count - 1:
                tl.store(counter, 0)
                _merge(
                    *(parts, sums, row * most + first, last - first, sinks, out, row, head),
                    *(KV_HEADS, GROUP, WIDTH, PADDED, GROUP_ROWS, SINKS),
                )


@kernel("most")
def attend_steady_prefixes(
    q: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    items: tl.tensor,
    members: tl.tensor,
    block_ids: tl.tensor,
    parts: tl.tensor,
    sums: tl.tensor,
    most: tl.tensor,
    q_stride: tl.tensor,
    scale: tl.tensor,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    QUERIES: tl.constexpr,
    SLOTS: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    PRECISION: tl.constexpr,
    SOFTCAP: tl.constexpr,
) -> None:
    """One tile of members x GROUP queries against one piece of their prefix; see prefix.py."""
    item, head = items + tl.program_id(0) * FIELDS, tl.program_id(1)
    count, num_tokens = tl.load(item + 1), tl.load(item + 3)
    if num_tokens > 0:
        query, at = tl.arange(0, QUERIES), tl.arange(0, PADDED)
        number = query // GROUP
        known = number < tl.minimum(count, QUERIES // GROUP)
        row = tl.load(members + tl.load(item) + number, mask=known, other=0).to(tl.int64)
        heads = head * GROUP + query % GROUP
        inside = known[:, None] & (at < WIDTH)[None, :]
        place = q + row[:, None] * q_stride + heads[:, None] * WIDTH + at[None, :]
        mine = tl.load(place, mask=inside, other=0.0)
        m, mass, acc = nothing_yet(QUERIES, PADDED)
        m, mass, acc = attend_stretch(
            *(mine, scale, keys, values, block_ids + tl.load(item + 2), 0, num_tokens),
            *(row, row, head, m, mass, acc, False, False, False, True, True),
            *(KV_HEADS, SLOTS, KEYS, WIDTH, PADDED, PRECISION, SOFTCAP),
        )
        mean, log_sum = finished(m, mass, acc)
        spot = (row * most + tl.load(item + 5)) * (KV_HEADS * GROUP) + heads
        tl.store(parts + spot[:, None] * WIDTH + at[None, :], mean, mask=inside)
        tl.store(sums + spot, log_sum, mask=known)
