"""Device code of decode.py."""

from __future__ import annotations

from typing import Any

import triton.language as tl

from quire.backends.triton.fp8_decode_kernels import attend_fp8
from quire.backends.triton.jit import kernel, part
from quire.backends.triton.softmax import (
    NOTHING,
    attend_stretch,
    finished,
    nothing_yet,
    with_sinks,
)


@part
def attend_item(
    mine: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    table: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    head: tl.tensor,
    scale: tl.tensor,
    QUERIES: tl.constexpr,
    KV_HEADS: tl.constexpr,
    SLOTS: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    PRECISION: tl.constexpr,
    SOFTCAP: tl.constexpr,
    FIXED: tl.constexpr,
) -> Any:
    """(weighted mean of the values of tokens begin .. end, log2-sum of the weights)"""
    if keys.dtype.element_ty == tl.float8e4nv:
        return attend_fp8(
            *(mine, keys, values, table, begin, end, head, scale),
            *(QUERIES, KV_HEADS, SLOTS, KEYS, WIDTH, PADDED),
        )
    else:  # Triton also compiles code after a return
        m, mass, acc = nothing_yet(QUERIES, PADDED)
        m, mass, acc = attend_stretch(
            *(mine, scale, keys, values, table, begin, end, begin, end, head, m, mass, acc),
            *(False, False, True, True, FIXED),
            *(KV_HEADS, SLOTS, KEYS, WIDTH, PADDED, PRECISION, SOFTCAP),
        )
        return finished(m, mass, acc)


@part
def _with_parts(
    log_sum: tl.tensor, means: tl.tensor, top: tl.tensor, weight: tl.tensor, acc: tl.tensor
) -> Any:
    """top, weight, acc after these parts, too: log_sum [parts, heads], means [parts, heads, D]."""
    new_top = tl.maximum(top, tl.max(log_sum, 0))
    share = tl.exp2(log_sum - new_top[None, :])
    shrink = tl.exp2(top - new_top)
    acc = acc * shrink[:, None] + tl.sum(means * share[:, :, None], 0)
    return new_top, weight * shrink + tl.sum(share, 0), acc


@part
def merged_parts(
    parts: tl.tensor,
    sums: tl.tensor,
    first: tl.tensor,
    count: tl.tensor,
    kv_head: tl.tensor,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    MERGED: tl.constexpr,
    GROUP_ROWS: tl.constexpr,
) -> Any:
    """top, weight, acc of a row's parts for the queries of a KV head.

    Parts are merged in the order of their numbers, MERGED at a time, whichever was computed last,
    so the result is always the same.
    """
    heads: tl.constexpr = KV_HEADS * GROUP
    query, at = tl.arange(0, GROUP_ROWS), tl.arange(0, PADDED)
    head = kv_head * GROUP + query
    top = tl.full([GROUP_ROWS], NOTHING, tl.float32)
    weight = tl.zeros([GROUP_ROWS], tl.float32)
    acc = tl.zeros([GROUP_ROWS, PADDED], tl.float32)
    for base in range(0, count, MERGED):
        number = base + tl.arange(0, MERGED)
        known = (number < count)[:, None] & (query < GROUP)[None, :]
        where = (first + number).to(tl.int64)[:, None] * heads + head[None, :]
        log_sum = tl.load(sums + where, mask=known, other=float("-inf"), cache_modifier=".cg")
        means = tl.load(
            parts + where[:, :, None] * WIDTH + at[None, None, :],
            mask=known[:, :, None] & (at < WIDTH)[None, None, :],
            other=0.0,
            cache_modifier=".cg",
        )
        top, weight, acc = _with_parts(log_sum, means, top, weight, acc)
    return top, weight, acc


@part
def merge_row(
    parts: tl.tensor,
    sums: tl.tensor,
    first: tl.tensor,
    count: tl.tensor,
    out: tl.tensor,
    row: tl.tensor,
    kv_head: tl.tensor,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    MERGED: tl.constexpr,
    GROUP_ROWS: tl.constexpr,
) -> None:
    """Merge a row's parts into its output, for the queries of a KV head."""
    _, weight, acc = merged_parts(
        *(parts, sums, first, count, kv_head, KV_HEADS, GROUP, WIDTH, PADDED, MERGED, GROUP_ROWS)
    )
    query, at = tl.arange(0, GROUP_ROWS), tl.arange(0, PADDED)
    inside = (query < GROUP)[:, None] & (at < WIDTH)[None, :]
    made = acc / tl.where(weight > 0.0, weight, 1.0)[:, None]
    place = (row * (KV_HEADS * GROUP) + (kv_head * GROUP + query)[:, None]) * WIDTH + at[None, :]
    tl.store(out + place, made.to(out.dtype.element_ty), mask=inside)


@part
def leave(
    mean: tl.tensor,
    log_sum: tl.tensor,
    item: tl.tensor,
    row: tl.tensor,
    head: tl.tensor,
    first: tl.tensor,
    count: tl.tensor,
    parts: tl.tensor,
    sums: tl.tensor,
    counters: tl.tensor,
    out: tl.tensor,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    QUERIES: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    MERGES: tl.constexpr,
    MERGED: tl.constexpr,
    GROUP_ROWS: tl.constexpr,
) -> None:
    """Store an item's result as a part or as the output; the row has `count` items from `first` on.
    If GROUP_ROWS is less than GROUP, which it divides, queries are merged so many at a time."""
    query, at = tl.arange(0, QUERIES), tl.arange(0, PADDED)
    inside = (query < GROUP)[:, None] & (at < WIDTH)[None, :]
    heads = head * GROUP + query
    if MERGES and count == 1:
        own = out + (row * (KV_HEADS * GROUP) + heads[:, None]) * WIDTH + at[None, :]
        tl.store(own, mean.to(out.dtype.element_ty), mask=inside)
    else:
        spot = item * (KV_HEADS * GROUP) + heads
        tl.store(parts + spot[:, None] * WIDTH + at[None, :], mean, mask=inside)
        tl.store(sums + spot, log_sum, mask=query < GROUP)
        if MERGES:
            tl.debug_barrier()
            counter = counters + row * KV_HEADS + head
            if tl.atomic_add(counter, 1, sem="acq_rel") == count - 1:
                tl.store(counter, 0)
                pieces: tl.constexpr = GROUP // GROUP_ROWS if GROUP_ROWS < GROUP else 1
                for piece in tl.static_range(pieces):
                    merge_row(
                        *(parts, sums, first, count, out, row, head * pieces + piece),
                        *(KV_HEADS * pieces, GROUP // pieces, WIDTH, PADDED, MERGED, GROUP_ROWS),
                    )


@kernel("table_stride")
def attend_items(
    q: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    tables: tl.tensor,
    items: tl.tensor,
    spans: tl.tensor,
    parts: tl.tensor,
    sums: tl.tensor,
    counters: tl.tensor,
    out: tl.tensor,
    sinks: tl.tensor,
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
    MERGES: tl.constexpr,
    MERGED: tl.constexpr,
    GROUP_ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SINKS: tl.constexpr,
) -> None:
    """One item of one KV head: the row's GROUP queries against a stretch of its keys.

    MERGES: the only part of a row is its output; of several, the last to be made merges them
    all. Else parts are left to merge_parts.
    """
    head, item = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row = tl.load(items + item * 4).to(tl.int64)
    begin, end = tl.load(items + item * 4 + 1), tl.load(items + item * 4 + 2)
    first = tl.load(spans + row * 2, mask=row >= 0, other=0)  # of the row's items
    count = tl.load(spans + row * 2 + 1, mask=row >= 0, other=0)
    table = tables + tl.load(items + item * 4 + 3).to(tl.int64) * table_stride
    query, at = tl.arange(0, QUERIES), tl.arange(0, PADDED)
    inside = (query < GROUP)[:, None] & (at < WIDTH)[None, :]
    heads = head * GROUP + query
    own = out + (row * (KV_HEADS * GROUP) + heads[:, None]) * WIDTH + at[None, :]
    if begin < end:
        place = q + row * q_stride + heads[:, None] * WIDTH + at[None, :]
        mine = tl.load(place, mask=inside, other=0.0)
        mean, log_sum = attend_item(
            *(mine, keys, values, table, begin, end, head, scale),
            *(QUERIES, KV_HEADS, SLOTS, KEYS, WIDTH, PADDED, PRECISION, SOFTCAP, False),
        )
        if SINKS and item == first:  # once for each row
            sink = tl.load(sinks + heads, mask=query < GROUP, other=0.0)
            mean, log_sum = with_sinks(mean, log_sum, sink)
        leave(
            *(mean, log_sum, item, row, head, first, count, parts, sums, counters, out),
            *(KV_HEADS, GROUP, QUERIES, WIDTH, PADDED, MERGES, MERGED, GROUP_ROWS),
        )
    elif MERGES and row >= 0:
        tl.store(own, tl.zeros([QUERIES, PADDED], out.dtype.element_ty), mask=inside)


@kernel("prefix_base")
def merge_parts(
    parts: tl.tensor,
    sums: tl.tensor,
    spans: tl.tensor,
    prefix_spans: tl.tensor,
    lengths: tl.tensor,
    out: tl.tensor,
    prefix_base: tl.tensor,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    PARTS: tl.constexpr,
    AT_ONCE: tl.constexpr,
) -> None:
    """Some heads of one row: its own parts, then those of two levels of shared prefixes."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * AT_ONCE + tl.arange(0, AT_ONCE)
    at = tl.arange(0, PADDED)
    inside = (head < HEADS)[:, None] & (at < WIDTH)[None, :]
    first, count = tl.load(spans + row * 2), tl.load(spans + row * 2 + 1)
    span = prefix_spans + row * 4
    outer_first, inner_first = tl.load(span) + prefix_base, tl.load(span + 2) + prefix_base
    outer = count + tl.load(span + 1)
    # A row without tokens of its own is not active, whatever its group contains.
    active = tl.load(lengths + row) > 0
    total = tl.where(active, outer + tl.load(span + 3), 0)
    top = tl.full([AT_ONCE], NOTHING, tl.float32)
    weight = tl.zeros([AT_ONCE], tl.float32)
    acc = tl.zeros([AT_ONCE, PADDED], tl.float32)
    for base in range(0, total, PARTS):
        number = base + tl.arange(0, PARTS)
        index = first + number
        index = tl.where(number >= count, outer_first + number - count, index)
        index = tl.where(number >= outer, inner_first + number - outer, index)
        known = (number < total)[:, None] & (head < HEADS)[None, :]
        where = index.to(tl.int64)[:, None] * HEADS + head[None, :]
        log_sum = tl.load(sums + where, mask=known, other=float("-inf"))
        means = tl.load(
            parts + where[:, :, None] * WIDTH + at[None, None, :],
            mask=known[:, :, None] & (at < WIDTH)[None, None, :],
            other=0.0,
        )
        top, weight, acc = _with_parts(log_sum, means, top, weight, acc)
    made = acc / tl.where(weight > 0.0, weight, 1.0)[:, None]
    place = out + (row * HEADS + head[:, None]) * WIDTH + at[None, :]
    tl.store(place, made.to(out.dtype.element_ty), mask=inside)
