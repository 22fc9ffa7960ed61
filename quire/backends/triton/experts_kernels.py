"""The code that runs on the device for experts.py."""

from __future__ import annotations

from typing import Any

import triton.language as tl

from quire.backends.triton.jit import kernel, part


@kernel("num_pairs")
def count_pairs(
    chosen: tl.tensor,
    counts: tl.tensor,
    ranks: tl.tensor,
    num_pairs: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """How many pairs each expert has, and the number of each pair among those of its expert. In
    which order they are counted is left to chance, and nothing depends on it."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < num_pairs
    expert = tl.load(chosen + at, mask=inside, other=0)
    rank = tl.atomic_add(counts + expert, 1, mask=inside)
    tl.store(ranks + at, rank, mask=inside)


@part
def _tiles_of(
    counts: tl.tensor, EXPERTS: tl.constexpr, LANES: tl.constexpr, ROWS: tl.constexpr
) -> Any:
    """Of each expert: its pairs, and how many tiles they fill."""
    lane = tl.arange(0, LANES)
    count = tl.load(counts + lane, mask=lane < EXPERTS, other=0)
    return count, (count + ROWS - 1) // ROWS


@kernel("num_pairs")
def order_pairs(
    chosen: tl.tensor,
    counts: tl.tensor,
    ranks: tl.tensor,
    ordered: tl.tensor,
    num_pairs: tl.tensor,
    EXPERTS: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Pairs by expert, those of each from the beginning of a tile on."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < num_pairs
    expert = tl.load(chosen + at, mask=inside, other=0)
    rank = tl.load(ranks + at, mask=inside, other=0)
    _, tiles = _tiles_of(counts, EXPERTS, LANES, ROWS)
    before = tl.arange(0, LANES)[None, :] < expert[:, None]
    first = tl.sum(tl.where(before, tiles[None, :], 0), 1)
    tl.store(ordered + first * ROWS + rank, at, mask=inside)


@kernel()
def multiply_experts(
    x: tl.tensor,
    weights: tl.tensor,
    biases: tl.tensor,
    counts: tl.tensor,
    ordered: tl.tensor,
    out: tl.tensor,
    inner: tl.tensor,
    PER_ROW: tl.constexpr,
    INNER: tl.constexpr,
    OUTER: tl.constexpr,
    EXPERTS: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    EVEN: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """out[pair] = x[pair // PER_ROW] weights[its expert]^T: a tile of one expert's pairs, COLUMNS
    columns of it. Columns of one tile are next to each other, so that its rows and its expert's
    weights are still near when they are read again. Programs beyond the last tile do nothing."""
    per_tile: tl.constexpr = (OUTER + COLUMNS - 1) // COLUMNS
    tile, strip = tl.program_id(0) // per_tile, tl.program_id(0) % per_tile
    lane = tl.arange(0, LANES)
    count, tiles = _tiles_of(counts, EXPERTS, LANES, ROWS)
    ends = tl.cumsum(tiles, 0)
    expert = tl.sum((ends <= tile).to(tl.int32), 0)
    if expert >= EXPERTS:
        return
    mine = lane == expert
    first = tl.sum(tl.where(mine, ends - tiles, 0), 0)
    number = (tile - first) * ROWS + tl.arange(0, ROWS)
    inside = number < tl.sum(tl.where(mine, count, 0), 0)
    pair = tl.load(ordered + tile * ROWS + tl.arange(0, ROWS), mask=inside, other=0)
    column = strip * COLUMNS + tl.arange(0, COLUMNS)
    kept = column < OUTER
    # Columns beyond the last read the last one's weights, and are not written.
    line = expert.to(tl.int64) * OUTER + tl.minimum(column, OUTER - 1)
    rows = x + (pair // PER_ROW).to(tl.int64)[:, None] * INNER
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    for base in range(0, inner, DEPTH):  # up to `inner`, which is INNER: not to be unrolled
        at = base + tl.arange(0, DEPTH)
        spot = weights + line[None, :] * INNER + at[:, None]
        if EVEN:
            w = tl.load(spot)
            a = tl.load(rows + at[None, :], mask=inside[:, None], other=0.0)
        else:
            near = at < INNER
            w = tl.load(
                weights + line[None, :] * INNER + at[:, None], mask=near[:, None], other=0.0
            )
            a = tl.load(rows + at[None, :], mask=inside[:, None] & near[None, :], other=0.0)
        acc = tl.dot(a, w, acc, input_precision=PRECISION)
    if HAS_BIAS:
        acc += tl.load(biases + line).to(tl.float32)[None, :]
    place = out + pair.to(tl.int64)[:, None] * OUTER + column[None, :]
    tl.store(place, acc.to(out.dtype.element_ty), mask=inside[:, None] & kept[None, :])


@kernel()
def add_up(
    made: tl.tensor,
    scores: tl.tensor,
    out: tl.tensor,
    width: tl.tensor,
    PER_TOKEN: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """What a token's experts made, each times its score, added in the order it chose them."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    total = tl.zeros([BLOCK], tl.float32)
    for i in tl.static_range(PER_TOKEN):
        pair = token * PER_TOKEN + i
        part = tl.load(made + pair * width + at, mask=inside, other=0.0).to(tl.float32)
        total += part * tl.load(scores + pair)
    tl.store(out + token * width + at, total.to(out.dtype.element_ty), mask=inside)
