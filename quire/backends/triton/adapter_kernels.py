"""The code that runs on the device for adapters.py."""

from __future__ import annotations

from typing import Any

import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from quire.backends.triton.jit import kernel, part


@part
def _fetch_tile(tiles: tl.tensor, order: tl.tensor, number: tl.tensor, ROWS: tl.constexpr) -> Any:
    """The slot of a tile, where its lines stand in the order, which they are, and which exist."""
    slot = tl.load(tiles + number * 3).to(tl.int64)
    first = tl.load(tiles + number * 3 + 1)
    count = tl.load(tiles + number * 3 + 2)
    at = tl.arange(0, ROWS)
    inside = at < count
    lines = tl.load(order + first + at, mask=inside, other=0).to(tl.int64)
    return slot, (first + at).to(tl.int64), lines, inside, count


@kernel("x_stride", "num_lines")
def shrink_lines(
    x: tl.tensor,
    a: tl.tensor,
    tiles: tl.tensor,
    order: tl.tensor,
    made: tl.tensor,
    x_stride: tl.tensor,
    num_lines: tl.tensor,
    INNER: tl.constexpr,
    RANK: tl.constexpr,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    SHARE: tl.constexpr,
    PRECISION: tl.constexpr,
    OVERLAPS: tl.constexpr,
) -> None:
    """made [splits, parts, lines in order, rank] = x A^T of each line's slot, by shares of the sum.

    a [slots, parts, rank, inner]"""
    number, part, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if OVERLAPS:
        gdc_wait()
    slot, place, lines, inside, count = _fetch_tile(tiles, order, number, ROWS)
    if count == 0:
        return
    rank, at = tl.arange(0, RANK), tl.arange(0, DEPTH)
    mine = a + (slot * PARTS + part) * RANK * INNER + rank.to(tl.int64)[None, :] * INNER
    total = tl.zeros((ROWS, RANK), tl.float32)
    for first in range(split * SHARE, split * SHARE + SHARE, DEPTH):
        k = first + at
        fits = k < INNER
        both = inside[:, None] & fits[None, :]
        given = tl.load(x + lines[:, None] * x_stride + k[None, :], mask=both, other=0.0)
        by = tl.load(mine + k[:, None], mask=fits[:, None], other=0.0)
        total = tl.dot(given, by, total, input_precision=PRECISION)
    into = made + ((split * PARTS + part).to(tl.int64) * num_lines + place[:, None]) * RANK
    tl.store(into + rank[None, :], total, mask=inside[:, None])


@kernel("y_stride", "num_lines")
def expand_lines(
    made: tl.tensor,
    b: tl.tensor,
    less: tl.tensor,
    bias: tl.tensor,
    y: tl.tensor,
    tiles: tl.tensor,
    order: tl.tensor,
    blocks: tl.tensor,
    y_stride: tl.tensor,
    num_lines: tl.tensor,
    OUTER: tl.constexpr,
    RANK: tl.constexpr,
    PARTS: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    HAS_FACTOR: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    OVERLAPS: tl.constexpr,
) -> None:
    """y += made B^T of each line's slot; with factors also (f - 1) (y - bias).

    b [slots, outer, rank], less float32 [slots, outer]; blocks int32 [*, 3]: the part of some
    columns, the first of them, and the one behind the last."""
    number, block = tl.program_id(0), tl.program_id(1)
    if OVERLAPS:
        gdc_wait()
    slot, place, lines, inside, count = _fetch_tile(tiles, order, number, ROWS)
    if count == 0:
        return
    part = tl.load(blocks + block * 3).to(tl.int64)
    column = tl.load(blocks + block * 3 + 1) + tl.arange(0, COLUMNS)
    exists = column < tl.load(blocks + block * 3 + 2)
    rank = tl.arange(0, RANK)
    total = tl.zeros((ROWS, RANK), tl.float32)
    for split in range(SPLITS):
        of = made + ((split * PARTS + part) * num_lines + place[:, None]) * RANK
        total += tl.load(of + rank[None, :], mask=inside[:, None], other=0.0)
    wide = column.to(tl.int64)
    by = tl.load(
        b + (slot * OUTER + wide)[None, :] * RANK + rank[:, None], mask=exists[None, :], other=0.0
    )
    more = tl.dot(total.to(b.dtype.element_ty), by, input_precision=PRECISION)
    into = y + lines[:, None] * y_stride + wide[None, :]
    both = inside[:, None] & exists[None, :]
    before = tl.load(into, mask=both, other=0.0).to(tl.float32)
    if HAS_FACTOR:
        plain = before
        if HAS_BIAS:
            plain -= tl.load(bias + wide, mask=exists, other=0.0).to(tl.float32)[None, :]
        more += plain * tl.load(less + slot * OUTER + wide, mask=exists, other=0.0)[None, :]
    tl.store(into, (before + more).to(y.dtype.element_ty), mask=both)
