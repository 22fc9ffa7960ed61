"""Device code of adapters.py."""

from __future__ import annotations

from typing import Any

import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from quire.backends.triton.elementwise import opened
from quire.backends.triton.jit import kernel, part


@part
def _fetch_tile(tiles: tl.tensor, number: tl.tensor, ROWS: tl.constexpr) -> Any:
    """The slot of a tile (or NO_SLOT, UNUSED) and its lines, -1 after the last."""
    record = tiles + number * (1 + ROWS)
    return tl.load(record).to(tl.int64), tl.load(record + 1 + tl.arange(0, ROWS)).to(tl.int64)


@kernel()
def shrink_lines(
    x: tl.tensor,
    a: tl.tensor,
    tiles: tl.tensor,
    made: tl.tensor,
    x_stride: tl.tensor,
    INNER: tl.constexpr,
    RANK: tl.constexpr,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    SHARE: tl.constexpr,
    PRECISION: tl.constexpr,
    OVERLAPS: tl.constexpr,
) -> None:
    """made [splits, parts, lines by tile, rank] = x A^T of each line's slot, by shares of the sum.

    a [slots, parts, rank, inner]"""
    number, part, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()  # the next kernel may load its B, and then waits
    slot, lines = _fetch_tile(tiles, number, ROWS)
    if slot < 0:
        return
    inside, rank, at = lines >= 0, tl.arange(0, RANK), tl.arange(0, DEPTH)
    mine = a + (slot * PARTS + part) * RANK * INNER + rank.to(tl.int64)[None, :] * INNER
    total = tl.zeros((ROWS, RANK), tl.float32)
    for first in range(split * SHARE, split * SHARE + SHARE, DEPTH):
        k = first + at
        fits = k < INNER
        both = inside[:, None] & fits[None, :]
        given = tl.load(x + lines[:, None] * x_stride + k[None, :], mask=both, other=0.0)
        by = tl.load(mine + k[:, None], mask=fits[:, None], other=0.0)
        total = tl.dot(given, by, total, input_precision=PRECISION)
    place = (split * PARTS + part).to(tl.int64) * tl.num_programs(0) + number
    place = place * ROWS + tl.arange(0, ROWS)
    tl.store(made + place[:, None] * RANK + rank[None, :], total)


@part
def _fetch_shrunk(
    y: tl.tensor,
    made: tl.tensor,
    lines: tl.tensor,
    slot: tl.tensor,
    part: tl.tensor,
    number: tl.tensor,
    y_stride: tl.tensor,
    OUTER: tl.constexpr,
    RANK: tl.constexpr,
    PARTS: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
) -> Any:
    """x A^T of these lines, [ROWS, RANK]."""
    rank, there = tl.arange(0, RANK)[None, :], (lines >= 0)[:, None] & (slot >= 0)
    if SPLITS == 0:
        column = OUTER + (slot * PARTS + part) * RANK + rank
        return tl.load(y + lines[:, None] * y_stride + column, mask=there, other=0.0)
    total = tl.zeros((ROWS, RANK), tl.float32)
    for split in range(SPLITS):
        place = (split * PARTS + part) * tl.num_programs(0) + number
        place = place * ROWS + tl.arange(0, ROWS)
        total += tl.load(made + place[:, None] * RANK + rank, mask=there, other=0.0)
    return total.to(y.dtype.element_ty)


@part
def _fetch_b(
    b: tl.tensor,
    slot: tl.tensor,
    column: tl.tensor,
    last: tl.tensor,
    OUTER: tl.constexpr,
    RANK: tl.constexpr,
) -> Any:
    """B of the slot, [RANK, COLUMNS], and which of these columns it has."""
    used = column < tl.where(slot >= 0, last, 0)
    place, rank = slot * OUTER + column.to(tl.int64), tl.arange(0, RANK)
    return tl.load(b + place[None, :] * RANK + rank[:, None], mask=used[None, :], other=0.0), used


@part
def _expanded(
    y: tl.tensor,
    made: tl.tensor,
    by: tl.tensor,
    used: tl.tensor,
    less: tl.tensor,
    bias: tl.tensor,
    lines: tl.tensor,
    slot: tl.tensor,
    part: tl.tensor,
    number: tl.tensor,
    column: tl.tensor,
    last: tl.tensor,
    y_stride: tl.tensor,
    OUTER: tl.constexpr,
    RANK: tl.constexpr,
    PARTS: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    HAS_FACTOR: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
) -> Any:
    """These columns of a tile's lines, with what its slot adds, float32."""
    exists = column < last
    both = (lines >= 0)[:, None] & exists[None, :]
    acc = tl.load(y + lines[:, None] * y_stride + column[None, :], mask=both, other=0.0)
    acc = acc.to(tl.float32)
    shrunk = _fetch_shrunk(
        *(y, made, lines, slot, part, number, y_stride),
        *(OUTER, RANK, PARTS, SPLITS, ROWS),
    )
    if HAS_BIAS:
        shift = tl.load(bias + column, mask=exists, other=0.0).to(tl.float32)[None, :]
    if HAS_FACTOR:
        grown = tl.load(less + slot * OUTER + column, mask=used, other=0.0)[None, :]
        acc += ((acc - shift) if HAS_BIAS and SPLITS > 0 else acc) * grown
    if HAS_BIAS and SPLITS == 0:
        acc += shift
    return tl.dot(shrunk, by, acc, input_precision=PRECISION)


@kernel()
def expand_lines(
    y: tl.tensor,
    made: tl.tensor,
    b: tl.tensor,
    less: tl.tensor,
    bias: tl.tensor,
    tiles: tl.tensor,
    blocks: tl.tensor,
    out: tl.tensor,
    y_stride: tl.tensor,
    out_stride: tl.tensor,
    OUTER: tl.constexpr,
    RANK: tl.constexpr,
    PARTS: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ALIGNED: tl.constexpr,
    GATE: tl.constexpr,
    HAS_FACTOR: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    OVERLAPS: tl.constexpr,
) -> None:
    """out = y + what A made B^T, each line by its slot; with factors also (f - 1) (y - bias).

    `made` float32 [splits, parts, lines by tile, rank] is what A made, and out is y. Where SPLITS
    is 0 that stands behind the columns of y, which have no bias yet, and out is another tensor.
    With a GATE, an activation, columns are gate | up, of two parts or one, and out is another
    tensor: what the gate lets through.

    b [slots, outer, rank], less = f - 1 float32 [slots, outer]; blocks int32 [*, 3]: the part of
    some columns, of the gate where there is one, the first of them, and the one behind the
    last."""
    number, block = tl.program_id(0), tl.program_id(1)
    # None of this was written by the launch ahead, nor by the one before it.
    slot, lines = _fetch_tile(tiles, number, ROWS)
    part = tl.load(blocks + block * 3).to(tl.int64)
    first, last = tl.load(blocks + block * 3 + 1), tl.load(blocks + block * 3 + 2)
    if slot < (-1 if SPLITS == 0 or GATE is not None else 0):
        if OVERLAPS:
            gdc_wait()
        return
    if ALIGNED:
        first, last = tl.multiple_of(first, 16), tl.multiple_of(last, 16)
    column = first + tl.arange(0, COLUMNS)
    by, used = _fetch_b(b, slot, column, last, OUTER, RANK)
    if GATE is not None:
        HALF: tl.constexpr = OUTER // 2
        up_by, up_used = _fetch_b(b, slot, HALF + column, HALF + last, OUTER, RANK)
    if OVERLAPS:
        gdc_wait()
    acc = _expanded(
        *(y, made, by, used, less, bias, lines, slot, part, number, column, last, y_stride),
        *(OUTER, RANK, PARTS, SPLITS, ROWS, HAS_FACTOR, HAS_BIAS, PRECISION),
    ).to(out.dtype.element_ty)
    if GATE is not None:
        up = _expanded(
            *(y, made, up_by, up_used, less, bias, lines, slot, part + PARTS - 1, number),
            *(HALF + column, HALF + last, y_stride),
            *(OUTER, RANK, PARTS, SPLITS, ROWS, HAS_FACTOR, HAS_BIAS, PRECISION),
        ).to(out.dtype.element_ty)
        acc = opened(acc.to(tl.float32), up.to(tl.float32), GATE, out.dtype.element_ty)
    spot = out + lines[:, None] * out_stride + column[None, :]
    tl.store(spot, acc, mask=(lines >= 0)[:, None] & (column < last)[None, :])
