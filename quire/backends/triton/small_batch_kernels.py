"""Device code of small_batch.py."""

from __future__ import annotations

from typing import Any

import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from quire.backends.triton.elementwise import opened
from quire.backends.triton.jit import kernel, part


@kernel()
def embed_rows(
    token_ids: tl.tensor,
    table: tl.tensor,
    norm: tl.tensor,
    residual: tl.tensor,
    scaled: tl.tensor,
    squares: tl.tensor,
    width: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """A token's line of the table, the same times the weight of its norm, and the sum of its
    squares."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    token = tl.load(token_ids + row)
    x = tl.load(table + token * width + at, mask=at < width, other=0.0)
    by = tl.load(norm + at, mask=at < width, other=0.0).to(tl.float32)
    tl.store(residual + row * width + at, x, mask=at < width)
    wide = x.to(tl.float32)
    tl.store(scaled + row * width + at, (wide * by).to(x.dtype), mask=at < width)
    tl.store(squares + row, tl.sum(wide * wide, 0))


@part
def _fetch_squares(
    squares: tl.tensor,
    row: tl.tensor,
    num_rows: tl.tensor,
    num_squares: tl.tensor,
    SQUARES: tl.constexpr,
) -> Any:
    """The partial sums of squares of each row."""
    part = tl.arange(0, SQUARES)
    known = (row < num_rows)[:, None] & (part < num_squares)[None, :]
    return tl.load(squares + row[:, None] * num_squares + part[None, :], mask=known, other=0.0)


@part
def _fetch_rows(
    x: tl.tensor,
    row: tl.tensor,
    num_rows: tl.tensor,
    at: tl.tensor,
    INNER: tl.constexpr,
    EVEN: tl.constexpr,
) -> Any:
    """x [ROWS, at], or [PIECES, ROWS, at] of at [PIECES, any]."""
    place, inside = x + row.to(tl.int64)[:, None] * INNER, (row < num_rows)[:, None]
    if len(at.shape) == 2:
        place, inside, at = place[None, :, :], inside[None, :, :], at[:, None, :]
    else:
        at = at[None, :]
    if not EVEN:
        inside = inside & (at < INNER)
    return tl.load(place + at, mask=inside, other=0.0)


@part
def _fetch_weights(
    weight: tl.tensor,
    column: tl.tensor,
    at: tl.tensor,
    INNER: tl.constexpr,
    EVEN: tl.constexpr,
) -> Any:
    """Transposed: [at, COLUMNS], or [PIECES, at, COLUMNS]."""
    place = weight + column.to(tl.int64)[None, :] * INNER
    if len(at.shape) == 2:
        place, at = place[None, :, :], at[:, :, None]
    else:
        at = at[:, None]
    if EVEN:
        return tl.load(place + at)
    return tl.load(place + at, mask=at < INNER, other=0.0)


@part
def _opened(wide: tl.tensor, dtype: tl.constexpr, ROWS: tl.constexpr, HALF: tl.constexpr) -> Any:
    """silu(gate) * up, for columns of which the first HALF are gate and the others up."""
    # A last dimension of two is what can be split.
    gate, up = tl.split(tl.trans(tl.reshape(wide, (ROWS, 2, HALF)), (0, 2, 1)))
    return opened(gate, up, "silu", dtype)


@part
def _summed(
    x: tl.tensor,
    weight: tl.tensor,
    row: tl.tensor,
    column: tl.tensor,
    num_rows: tl.tensor,
    inner: tl.tensor,
    INNER: tl.constexpr,
    DEPTH: tl.constexpr,
    PIECES: tl.constexpr,
    EVEN: tl.constexpr,
    PRECISION: tl.constexpr,
) -> Any:
    """Each row times each column, in float32; if the sum is in PIECES, they are added up."""
    each: tl.constexpr = DEPTH // PIECES
    if PIECES == 1:
        ahead = tl.arange(0, DEPTH)
        acc = tl.zeros([row.shape[0], column.shape[0]], tl.float32)
    else:
        ahead = tl.arange(0, PIECES)[:, None] * each + tl.arange(0, each)[None, :]
        acc = tl.zeros([PIECES, row.shape[0], column.shape[0]], tl.float32)
    # Up to `inner`, which is INNER: a loop of known length would be unrolled, and fetching that
    # much code takes a kernel of a few microseconds longer than running it.
    for base in range(0, inner, DEPTH):
        at = base + ahead
        w = _fetch_weights(weight, column, at, INNER, EVEN)
        mine = _fetch_rows(x, row, num_rows, at, INNER, EVEN)
        acc = tl.dot(mine, w, acc, input_precision=PRECISION)
    return acc if PIECES == 1 else tl.sum(acc, 0)


@kernel("num_rows", "num_squares", "inner")
def multiply(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    norm: tl.tensor,
    squares: tl.tensor,
    out: tl.tensor,
    scaled: tl.tensor,
    made_squares: tl.tensor,
    num_rows: tl.tensor,
    num_squares: tl.tensor,
    inner: tl.tensor,
    eps: tl.tensor,
    INNER: tl.constexpr,
    OUTER: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    PIECES: tl.constexpr,
    SQUARES: tl.constexpr,
    EVEN: tl.constexpr,
    NORMED: tl.constexpr,
    GATED: tl.constexpr,
    ADDS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    OVERLAPS: tl.constexpr,
) -> None:
    """COLUMNS columns of x weight^T; see small_batch.py.

    GATED: as many columns of the gate (the first OUTER lines of the weight) and of what it
    lets through (the others), side by side. ADDS: `out` is added to, and times `norm` it is
    `scaled`.
    """
    tile, row, lane = tl.program_id(0), tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    half: tl.constexpr = COLUMNS // 2 if GATED else COLUMNS
    column = tl.minimum(tile * half + lane % half, OUTER - 1) + (lane // half) * OUTER
    own = tile * half + tl.arange(0, half)  # the columns of `out`
    if ADDS:
        by = tl.load(norm + own, mask=own < OUTER, other=0.0).to(tl.float32)
    if OVERLAPS:
        gdc_wait()
    kept = (row < num_rows)[:, None] & (own < OUTER)[None, :]
    place = row.to(tl.int64)[:, None] * OUTER + own[None, :]
    if NORMED:
        partial = _fetch_squares(squares, row, num_rows, num_squares, SQUARES)
    if ADDS:
        stream = tl.load(out + place, mask=kept, other=0.0).to(tl.float32)
    ends = (row, column, num_rows, inner)
    acc = _summed(x, weight, *ends, INNER, DEPTH, PIECES, EVEN, PRECISION)
    if OVERLAPS:  # the next kernel may use free cores
        gdc_launch_dependents()
    dtype: tl.constexpr = out.dtype.element_ty
    if NORMED:  # the norm's factor of a row, applied to the sums at the end
        acc *= tl.rsqrt(tl.sum(partial, 1) / INNER + eps)[:, None]
    if HAS_BIAS:
        acc += tl.load(bias + column).to(tl.float32)[None, :]
    wide = acc.to(dtype).to(tl.float32)
    if GATED:
        wide = _opened(wide, dtype, ROWS, half).to(tl.float32)
    if ADDS:
        wide = tl.where(kept, (wide + stream).to(dtype).to(tl.float32), 0.0)
        spot = made_squares + row * tl.num_programs(0) + tile
        tl.store(spot, tl.sum(wide * wide, 1), mask=row < num_rows)
        tl.store(scaled + place, (wide * by[None, :]).to(dtype), mask=kept)
    tl.store(out + place, wide.to(dtype), mask=kept)
