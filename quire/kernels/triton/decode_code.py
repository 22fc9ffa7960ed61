"""The code that runs on the device for decode.py."""

from __future__ import annotations

from typing import Any

import triton.language as tl

from quire.kernels.triton.jit import kernel, part
from quire.kernels.triton.softmax import NOTHING, absorb, fetch, finished


@part
def _own_range(
    lengths: tl.tensor,
    starts: tl.tensor,
    row: tl.tensor,
    num_rows: tl.tensor,
    window: tl.tensor,
    HAS_STARTS: tl.constexpr,
) -> Any:
    """(first, end) of what each row reads by itself."""
    end = tl.load(lengths + row, mask=row < num_rows, other=0)
    first = tl.zeros_like(end)
    if HAS_STARTS:
        first = tl.load(starts + row, mask=row < num_rows, other=0)
    if window > 0:
        first = tl.maximum(first, end - window)
    return tl.minimum(first, end), end


@part
def _stretch(
    lengths: tl.tensor,
    starts: tl.tensor,
    num_rows: tl.tensor,
    spread: tl.tensor,
    window: tl.tensor,
    HAS_STARTS: tl.constexpr,
    KEYS: tl.constexpr,
    LONG: tl.constexpr,
    ROWS: tl.constexpr,
) -> Any:
    """(how long a full item is, how many there are)

    A quarter of `spread` items cover everything if they are then at most LONG, else as many of
    LONG tokens as that takes, but no more than `spread`.
    """
    total, num_full = tl.full([], 0, tl.int64), tl.full([], 0, tl.int32)
    for base in range(0, num_rows, ROWS):
        row = base + tl.arange(0, ROWS)
        first, end = _own_range(lengths, starts, row, num_rows, window, HAS_STARTS)
        total += tl.sum((end - first).to(tl.int64))
    least = tl.minimum(tl.cdiv(total, tl.maximum(spread // 4, 1)), LONG)
    made = tl.maximum(tl.maximum(least, tl.cdiv(total, spread)), 1)
    stretch = (tl.cdiv(made, KEYS) * KEYS).to(tl.int32)
    for base in range(0, num_rows, ROWS):
        row = base + tl.arange(0, ROWS)
        first, end = _own_range(lengths, starts, row, num_rows, window, HAS_STARTS)
        num_full += tl.sum((end - first) // stretch)
    return stretch, num_full


@part
def _count_passed(ends: tl.tensor, counts: tl.tensor, item: tl.tensor, real: tl.tensor) -> Any:
    """(rows whose items all come before each item, how many items they have)"""
    passed = (ends[None, :] <= item[:, None]) & real[None, :]
    return tl.sum(passed.to(tl.int32), 1), tl.sum(tl.where(passed, counts[None, :], 0), 1)


@kernel("num_rows", "num_items", "spread", "window")
def make_items(
    lengths: tl.tensor,
    starts: tl.tensor,
    table_rows: tl.tensor,
    items: tl.tensor,
    spans: tl.tensor,
    num_rows: tl.tensor,
    num_items: tl.tensor,
    spread: tl.tensor,
    window: tl.tensor,
    HAS_STARTS: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    LONG: tl.constexpr,
    ITEMS: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    """ITEMS items per program; every program counts all rows, which is faster than sharing.

    Full stretches come first and what is left of each row after them: the last programs to
    start are then short ones. There are never more items than spread + num_rows.
    """
    stretch, num_full = _stretch(
        lengths, starts, num_rows, spread, window, HAS_STARTS, KEYS, LONG, ROWS
    )
    item = tl.program_id(0) * ITEMS + tl.arange(0, ITEMS)
    is_full = item < num_full
    owner, before = tl.zeros([ITEMS], tl.int32), tl.zeros([ITEMS], tl.int32)
    full_so_far, rest_so_far = tl.full([], 0, tl.int32), num_full
    for base in range(0, num_rows, ROWS):
        row = base + tl.arange(0, ROWS)
        first, end = _own_range(lengths, starts, row, num_rows, window, HAS_STARTS)
        full = (end - first) // stretch
        rest = (end - first > full * stretch).to(tl.int32)
        full_ends = full_so_far + tl.cumsum(full, 0)
        rest_ends = rest_so_far + tl.cumsum(rest, 0)
        passed, theirs = _count_passed(full_ends, full, item, row < num_rows)
        passed_rest, _ = _count_passed(rest_ends, rest, item, row < num_rows)
        owner += tl.where(is_full, passed, passed_rest)
        before += theirs
        full_so_far += tl.sum(full)
        rest_so_far += tl.sum(rest)
        if tl.program_id(0) == 0:
            span = spans + row * 4
            tl.store(span, full_ends - full, mask=row < num_rows)
            tl.store(span + 1, full, mask=row < num_rows)
            tl.store(span + 2, rest_ends - rest, mask=row < num_rows)
            tl.store(span + 3, full + rest, mask=row < num_rows)
    real = (item < rest_so_far) & (owner < num_rows)
    first, end = _own_range(
        lengths, starts, tl.where(real, owner, num_rows), num_rows, window, HAS_STARTS
    )
    number = tl.where(is_full, item - before, (end - first) // stretch)
    begin = first + number * stretch
    table_row = owner
    if HAS_ROWS:
        table_row = tl.load(table_rows + owner, mask=real, other=0).to(tl.int32)
    kept, place = item < num_items, items + item * 4
    tl.store(place, owner, mask=kept)
    tl.store(place + 1, tl.where(real, begin, 0), mask=kept)
    tl.store(place + 2, tl.where(real, tl.minimum(begin + stretch, end), 0), mask=kept)
    tl.store(place + 3, table_row, mask=kept)


@kernel("table_stride", "q_stride")
def attend_items(
    q: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    tables: tl.tensor,
    items: tl.tensor,
    parts: tl.tensor,
    sums: tl.tensor,
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
    PRECISION: tl.constexpr,
) -> None:
    """One item of one KV head: the row's GROUP queries against a stretch of its keys."""
    head, item = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row = tl.load(items + item * 4).to(tl.int64)
    begin, end = tl.load(items + item * 4 + 1), tl.load(items + item * 4 + 2)
    table = tables + tl.load(items + item * 4 + 3).to(tl.int64) * table_stride
    if begin < end:
        query, at, step = tl.arange(0, QUERIES), tl.arange(0, PADDED), tl.arange(0, KEYS)
        inside = (query < GROUP)[:, None] & (at < WIDTH)[None, :]
        heads = head * GROUP + query
        place = q + row * q_stride + heads[:, None] * WIDTH + at[None, :]
        mine = tl.load(place, mask=inside, other=0.0)
        m = tl.full([QUERIES], NOTHING, tl.float32)
        mass = tl.zeros([QUERIES], tl.float32)
        acc = tl.zeros([QUERIES, PADDED], tl.float32)
        for base in range(begin, end, KEYS):
            index = base + step
            real = index < end
            block = tl.load(table + index // SLOTS, mask=real, other=0)
            k = fetch(keys, block, index, head, real, at, KV_HEADS, SLOTS, WIDTH, PADDED, True)
            scores = tl.dot(mine, k, input_precision=PRECISION) * scale
            scores = tl.where(real[None, :], scores, NOTHING)
            v = fetch(values, block, index, head, real, at, KV_HEADS, SLOTS, WIDTH, PADDED, False)
            m, mass, acc = absorb(scores, v, m, mass, acc, PRECISION)
        mean, log_sum = finished(m, mass, acc)
        out = item * (KV_HEADS * GROUP) + heads
        tl.store(parts + out[:, None] * WIDTH + at[None, :], mean, mask=inside)
        tl.store(sums + out, log_sum, mask=query < GROUP)


@kernel("prefix_base")
def merge_parts(
    parts: tl.tensor,
    sums: tl.tensor,
    spans: tl.tensor,
    prefix_spans: tl.tensor,
    out: tl.tensor,
    prefix_base: tl.tensor,
    HEADS: tl.constexpr,
    HAS_PREFIXES: tl.constexpr,
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
    first, num_full = tl.load(spans + row * 4), tl.load(spans + row * 4 + 1)
    rest, count = tl.load(spans + row * 4 + 2), tl.load(spans + row * 4 + 3)
    total, outer, inner, outer_first, inner_first = count, count, count, first, first
    if HAS_PREFIXES:
        span = prefix_spans + row * 4
        outer_first, inner_first = tl.load(span) + prefix_base, tl.load(span + 2) + prefix_base
        outer = count + tl.load(span + 1)
        inner = outer + tl.load(span + 3)
        # A row that has no part of its own is not active, whatever its group says.
        total = tl.where(count > 0, inner, 0)
    top = tl.full([AT_ONCE], NOTHING, tl.float32)
    weight = tl.zeros([AT_ONCE], tl.float32)
    acc = tl.zeros([AT_ONCE, PADDED], tl.float32)
    for base in range(0, total, PARTS):
        number = base + tl.arange(0, PARTS)
        index = tl.where(number < num_full, first + number, rest)
        if HAS_PREFIXES:
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
        new_top = tl.maximum(top, tl.max(log_sum, 0))
        share = tl.exp2(log_sum - new_top[None, :])
        shrink = tl.exp2(top - new_top)
        acc = acc * shrink[:, None] + tl.sum(means * share[:, :, None], 0)
        weight = weight * shrink + tl.sum(share, 0)
        top = new_top
    made = acc / tl.where(weight > 0.0, weight, 1.0)[:, None]
    place = out + (row * HEADS + head[:, None]) * WIDTH + at[None, :]
    tl.store(place, made.to(out.dtype.element_ty), mask=inside)
