"""The code that runs on the device for steady.py.

Compiled without fused multiply-adds (`enable_fp_fusion=False`): which of them a compiler makes
depends on what stands around, and a kernel for prompts must round as one for decode rows does.
"""

from __future__ import annotations

from typing import Any

import triton.language as tl

from quire.backends import pieces
from quire.backends.triton.decode_kernels import merged_parts
from quire.backends.triton.jit import kernel, part
from quire.backends.triton.softmax import attend_stretch, finished, nothing_yet, with_sinks

SHORT, MIDDLE, LARGE = (tl.constexpr(x) for x in (pieces.SHORT, pieces.MIDDLE, pieces.LARGE))
FIRST_END, SECOND_END = tl.constexpr(pieces.FIRST_END), tl.constexpr(pieces.SECOND_END)
FIELDS = tl.constexpr(8)  # of an item
_SHORTS = tl.constexpr(pieces.FIRST_END // pieces.SHORT)
_MIDDLES = tl.constexpr((pieces.SECOND_END - pieces.FIRST_END) // pieces.MIDDLE)


@part
def num_pieces(length: tl.tensor) -> Any:
    """How many pieces so many tokens are."""
    shorts = tl.cdiv(tl.minimum(length, FIRST_END), SHORT)
    rest = tl.maximum(length - FIRST_END, 0)
    middles = tl.cdiv(tl.minimum(rest, SECOND_END - FIRST_END), MIDDLE)
    return shorts + middles + tl.cdiv(tl.maximum(length - SECOND_END, 0), LARGE)


@part
def piece_begin(number: tl.tensor) -> Any:
    """Where a piece begins: 0 512 .. 4096 6144 .. 32768 40960 .."""
    middles = tl.minimum(tl.maximum(number - _SHORTS, 0), _MIDDLES)
    larges = tl.maximum(number - _SHORTS - _MIDDLES, 0)
    return tl.minimum(number, _SHORTS) * SHORT + middles * MIDDLE + larges * LARGE


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
def _mean_of(
    top: tl.tensor, weight: tl.tensor, total: tl.tensor, sinks: tl.tensor, SINKS: tl.constexpr
) -> Any:
    """What pieces make together, beside a sink for each query if there are SINKS."""
    seen = weight > 0.0
    some = tl.where(seen, weight, 1.0)
    mean = total / some[:, None]
    if SINKS:
        log_sum = tl.where(seen, top + tl.log2(some), float("-inf"))
        mean, _ = with_sinks(mean, log_sum, sinks)
    return mean


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
    """One item of one KV head after the other, as many programs as there are taking turns. A row's
    only piece is its output; of several, whoever makes the last merges them, in their order."""
    head = tl.program_id(0)
    query, at = tl.arange(0, QUERIES), tl.arange(0, PADDED)
    inside = (query < GROUP)[:, None] & (at < WIDTH)[None, :]
    heads = head * GROUP + query
    all_heads: tl.constexpr = KV_HEADS * GROUP
    merged = tl.arange(0, GROUP_ROWS)
    merged_heads = head * GROUP + merged
    sink, merged_sink = 0.0, 0.0
    if SINKS:
        sink = tl.load(sinks + heads, mask=query < GROUP, other=0.0)
        merged_sink = tl.load(sinks + merged_heads, mask=merged < GROUP, other=0.0)
    for number in range(tl.program_id(1), tl.load(total), tl.num_programs(1)):
        item = items + number * FIELDS
        row = tl.load(item).to(tl.int64)
        begin, end = tl.load(item + 1), tl.load(item + 2)
        table = tables + tl.load(item + 3).to(tl.int64) * table_stride
        count, last, first = tl.load(item + 5), tl.load(item + 6), tl.load(item + 7)
        place = q + row * q_stride + heads[:, None] * WIDTH + at[None, :]
        mine = tl.load(place, mask=inside, other=0.0)
        m, mass, acc = nothing_yet(QUERIES, PADDED)
        m, mass, acc = attend_stretch(
            *(mine, scale, keys, values, table, begin, end, begin, end, head, m, mass, acc),
            *(False, False, True, True, True),
            *(KV_HEADS, SLOTS, KEYS, WIDTH, PADDED, PRECISION, SOFTCAP),
        )
        mean, log_sum = finished(m, mass, acc)
        if last - first == 1:
            if SINKS:
                mean, log_sum = with_sinks(mean, log_sum, sink)
            own = out + (row * all_heads + heads[:, None]) * WIDTH + at[None, :]
            tl.store(own, mean.to(out.dtype.element_ty), mask=inside)
        else:
            spot = (row * most + tl.load(item + 4)) * all_heads + heads
            tl.store(parts + spot[:, None] * WIDTH + at[None, :], mean, mask=inside)
            tl.store(sums + spot, log_sum, mask=query < GROUP)
            tl.debug_barrier()
            counter = counters + row * KV_HEADS + head
            if tl.atomic_add(counter, 1, sem="acq_rel") == count - 1:
                tl.store(counter, 0)
                top, weight, summed = merged_parts(
                    *(parts, sums, row * most + first, last - first, head),
                    *(KV_HEADS, GROUP, WIDTH, PADDED, 1, GROUP_ROWS),
                )
                made = _mean_of(top, weight, summed, merged_sink, SINKS)
                own = out + (row * all_heads + merged_heads[:, None]) * WIDTH + at[None, :]
                there = (merged < GROUP)[:, None] & (at < WIDTH)[None, :]
                tl.store(own, made.to(out.dtype.element_ty), mask=there)


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


@part
def _folded(
    m: tl.tensor,
    mass: tl.tensor,
    acc: tl.tensor,
    top: tl.tensor,
    weight: tl.tensor,
    total: tl.tensor,
) -> Any:
    """top, weight, total after this piece, too: as the parts of a decode row are merged."""
    mean, log_sum = finished(m, mass, acc)
    new_top = tl.maximum(top, log_sum)
    share, shrink = tl.exp2(log_sum - new_top), tl.exp2(top - new_top)
    total = total * shrink[:, None] + mean * share[:, None]
    return new_top, weight * shrink + share, total


@part
def _attend_pieces(
    mine: tl.tensor,
    scale: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    table: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    first_seen: tl.tensor,
    last_seen: tl.tensor,
    head: tl.tensor,
    top: tl.tensor,
    weight: tl.tensor,
    total: tl.tensor,
    HAS_FIRST: tl.constexpr,
    MASKED: tl.constexpr,
    KV_HEADS: tl.constexpr,
    SLOTS: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    PRECISION: tl.constexpr,
    SOFTCAP: tl.constexpr,
) -> Any:
    """top, weight, total after pieces first .. last, each from nothing on, of which tokens begin ..
    end are there."""
    for number in range(first, last):
        start, stop = piece_begin(number), tl.minimum(piece_begin(number + 1), end)
        if HAS_FIRST:
            start = tl.maximum(start, begin)
        m, mass, acc = nothing_yet(mine.shape[0], PADDED)
        m, mass, acc = attend_stretch(
            *(mine, scale, keys, values, table, start, stop, first_seen, last_seen, head),
            *(m, mass, acc, HAS_FIRST, True, MASKED, True, True),
            *(KV_HEADS, SLOTS, KEYS, WIDTH, PADDED, PRECISION, SOFTCAP),
        )
        top, weight, total = _folded(m, mass, acc, top, weight, total)
    return top, weight, total


@kernel("table_stride", "window")
def attend_steady_tiles(
    q: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    out: tl.tensor,
    query_starts: tl.tensor,
    context_lens: tl.tensor,
    tables: tl.tensor,
    tiles: tl.tensor,
    sinks: tl.tensor,
    table_stride: tl.tensor,
    q_stride: tl.tensor,
    scale: tl.tensor,
    window: tl.tensor,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    QUERIES: tl.constexpr,
    SLOTS: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    PRECISION: tl.constexpr,
    SOFTCAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
) -> None:
    """One tile of QUERIES // GROUP tokens of one sequence, for one KV head, piece by piece."""
    tile, head = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1)
    sequence = tl.load(tiles + tile * 2).to(tl.int64)
    if sequence >= 0:
        first = tl.load(tiles + tile * 2 + 1)
        end_token = tl.load(query_starts + sequence + 1).to(tl.int32)
        context = tl.load(context_lens + sequence).to(tl.int32)
        per_tile: tl.constexpr = QUERIES // GROUP
        query, at = tl.arange(0, QUERIES), tl.arange(0, PADDED)
        token = first + query // GROUP
        known = (token < end_token) & (query < per_tile * GROUP)
        inside = known[:, None] & (at < WIDTH)[None, :]
        offset = token.to(tl.int64)[:, None]
        place = (head * GROUP + query % GROUP)[:, None] * WIDTH + at[None, :]
        mine = tl.load(q + offset * q_stride + place, mask=inside, other=0.0)
        position = context - end_token + token
        lowest = context - end_token + first
        highest = tl.minimum(lowest + per_tile, context)
        table = tables + sequence * table_stride
        # Pieces that begin behind the windows of some, that all queries see whole, and that some
        # see the beginning of.
        last = num_pieces(highest)
        whole = num_pieces(lowest + 2) - 1
        shown, earliest, seen = 0, 0, position
        top, weight, total = nothing_yet(QUERIES, PADDED)
        if HAS_WINDOW:
            earliest, seen = tl.maximum(lowest - window + 1, 0), position - window + 1
            first_piece = num_pieces(earliest + 1) - 1
            shown = tl.maximum(num_pieces(tl.maximum(highest - window, 0)), first_piece)
            shown = tl.minimum(shown, last)
            top, weight, total = _attend_pieces(
                *(mine, scale, keys, values, table, first_piece, shown, earliest, highest),
                *(seen, position, head, top, weight, total, True, True),
                *(KV_HEADS, SLOTS, KEYS, WIDTH, PADDED, PRECISION, SOFTCAP),
            )
        whole = tl.maximum(whole, shown)
        top, weight, total = _attend_pieces(
            *(mine, scale, keys, values, table, shown, whole, earliest, highest),
            *(seen, position, head, top, weight, total, False, False),
            *(KV_HEADS, SLOTS, KEYS, WIDTH, PADDED, PRECISION, SOFTCAP),
        )
        top, weight, total = _attend_pieces(
            *(mine, scale, keys, values, table, whole, last, earliest, highest),
            *(seen, position, head, top, weight, total, False, True),
            *(KV_HEADS, SLOTS, KEYS, WIDTH, PADDED, PRECISION, SOFTCAP),
        )
        sink = 0.0
        if SINKS:
            sink = tl.load(sinks + head * GROUP + query % GROUP)
        made = _mean_of(top, weight, total, sink, SINKS).to(out.dtype.element_ty)
        tl.store(out + offset * (KV_HEADS * GROUP * WIDTH) + place, made, mask=inside)
