"""Device code that makes the items of a decode step; see decode.py."""

from __future__ import annotations

from typing import Any

import triton.language as tl

from quire.backends.triton.jit import kernel, part


@part
def _own_range(
    lengths: tl.tensor,
    starts: tl.tensor,
    row: tl.tensor,
    num_rows: tl.tensor,
    window: tl.tensor,
    HAS_STARTS: tl.constexpr,
) -> Any:
    """(first, end) of the tokens that each row reads by itself."""
    end = tl.load(lengths + row, mask=row < num_rows, other=0)
    first = tl.zeros_like(end)
    if HAS_STARTS:
        first = tl.load(starts + row, mask=row < num_rows, other=0)
    if window > 0:
        first = tl.maximum(first, end - window)
    return tl.minimum(first, end), end


@part
def _pieces(length: tl.tensor, real: tl.tensor, stretch: tl.tensor, KEYS: tl.constexpr) -> Any:
    """(tokens of each item of a row but the last, how many items, whether the row is long)

    Equal ones, of 3/4 to 5/4 of the stretch where the row is long enough. A row without any
    tokens has one item, too.
    """
    wished = tl.maximum((4 * length + 3 * stretch - 1) // (4 * stretch), 1)
    each = tl.maximum(tl.cdiv(tl.cdiv(length, wished), KEYS), 1) * KEYS
    count = tl.where(real, tl.maximum(tl.cdiv(length, each), 1), 0)
    return each, count, real & (2 * length >= stretch)


@part
def _stretch(
    lengths: tl.tensor,
    starts: tl.tensor,
    num_rows: tl.tensor,
    wanted: tl.tensor,
    spread: tl.tensor,
    window: tl.tensor,
    HAS_STARTS: tl.constexpr,
    KEYS: tl.constexpr,
    LONG: tl.constexpr,
    ROWS: tl.constexpr,
) -> Any:
    """(how many tokens an item should have, how many items long rows have)

    `wanted` items cover everything if they are then at most LONG, else as many of LONG tokens
    as that takes, but no more than `spread`.
    """
    total, num_long = tl.full([], 0, tl.int64), tl.full([], 0, tl.int32)
    for base in range(0, num_rows, ROWS):
        row = base + tl.arange(0, ROWS)
        first, end = _own_range(lengths, starts, row, num_rows, window, HAS_STARTS)
        total += tl.sum((end - first).to(tl.int64))
    least = tl.minimum(tl.cdiv(total, wanted), LONG)
    made = tl.maximum(tl.maximum(least, tl.cdiv(total, spread)), 1)
    stretch = (tl.cdiv(made, KEYS) * KEYS).to(tl.int32)
    for base in range(0, num_rows, ROWS):
        row = base + tl.arange(0, ROWS)
        first, end = _own_range(lengths, starts, row, num_rows, window, HAS_STARTS)
        _, count, is_long = _pieces(end - first, row < num_rows, stretch, KEYS)
        num_long += tl.sum(tl.where(is_long, count, 0))
    return stretch, num_long


@part
def _count_passed(ends: tl.tensor, counts: tl.tensor, item: tl.tensor, real: tl.tensor) -> Any:
    """(rows whose items all come before each item, how many items they have)"""
    passed = (ends[None, :] <= item[:, None]) & real[None, :]
    return tl.sum(passed.to(tl.int32), 1), tl.sum(tl.where(passed, counts[None, :], 0), 1)


@kernel("num_rows", "num_items", "wanted", "spread", "window")
def make_items(
    lengths: tl.tensor,
    starts: tl.tensor,
    table_rows: tl.tensor,
    items: tl.tensor,
    spans: tl.tensor,
    num_rows: tl.tensor,
    num_items: tl.tensor,
    wanted: tl.tensor,
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

    The items of long rows come first, so that the last programs to start are short ones. There are
    never more items than spread + num_rows; unused ones have owner -1.
    """
    stretch, num_long = _stretch(
        lengths, starts, num_rows, wanted, spread, window, HAS_STARTS, KEYS, LONG, ROWS
    )
    item = tl.program_id(0) * ITEMS + tl.arange(0, ITEMS)
    of_long = item < num_long
    owner, before = tl.zeros([ITEMS], tl.int32), tl.where(of_long, 0, num_long)
    long_so_far, short_so_far = tl.full([], 0, tl.int32), num_long
    for base in range(0, num_rows, ROWS):
        row = base + tl.arange(0, ROWS)
        first, end = _own_range(lengths, starts, row, num_rows, window, HAS_STARTS)
        _, count, is_long = _pieces(end - first, row < num_rows, stretch, KEYS)
        longs, shorts = tl.where(is_long, count, 0), tl.where(is_long, 0, count)
        long_ends = long_so_far + tl.cumsum(longs, 0)
        short_ends = short_so_far + tl.cumsum(shorts, 0)
        passed, theirs = _count_passed(long_ends, longs, item, row < num_rows)
        passed_too, theirs_too = _count_passed(short_ends, shorts, item, row < num_rows)
        owner += tl.where(of_long, passed, passed_too)
        before += tl.where(of_long, theirs, theirs_too)
        long_so_far += tl.sum(longs)
        short_so_far += tl.sum(shorts)
        if tl.program_id(0) == 0:
            begins = tl.where(is_long, long_ends, short_ends) - count
            tl.store(spans + row * 2, begins, mask=row < num_rows)
            tl.store(spans + row * 2 + 1, count, mask=row < num_rows)
    real = (item < short_so_far) & (owner < num_rows)
    first, end = _own_range(
        lengths, starts, tl.where(real, owner, num_rows), num_rows, window, HAS_STARTS
    )
    each, _, _ = _pieces(end - first, real, stretch, KEYS)
    begin = first + (item - before) * each
    table_row = owner
    if HAS_ROWS:
        table_row = tl.load(table_rows + owner, mask=real, other=0).to(tl.int32)
    kept, place = item < num_items, items + item * 4
    tl.store(place, tl.where(real, owner, -1), mask=kept)
    tl.store(place + 1, tl.where(real, begin, 0), mask=kept)
    tl.store(place + 2, tl.where(real, tl.minimum(begin + each, end), 0), mask=kept)
    tl.store(place + 3, table_row, mask=kept)
