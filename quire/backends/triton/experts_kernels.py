"""Device code of experts.py."""

from __future__ import annotations

from typing import Any

import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from quire.backends.triton.jit import kernel, part


@kernel("num_tokens")
def choose_experts(
    products: tl.tensor,
    bias: tl.tensor,
    chosen: tl.tensor,
    scores: tl.tensor,
    num_tokens: tl.tensor,
    factor: tl.tensor,
    least_sum: tl.tensor,
    EXPERTS: tl.constexpr,
    LANES: tl.constexpr,
    PER_TOKEN: tl.constexpr,
    PLACES: tl.constexpr,
    ROWS: tl.constexpr,
    SOFTMAX: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    RENORMALISE: tl.constexpr,
    OVERLAPS: tl.constexpr,
) -> None:
    """The PER_TOKEN experts with the best scores for each of ROWS tokens; of equal scores the
    first."""
    token = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    inside, lane, place = token < num_tokens, tl.arange(0, LANES), tl.arange(0, PLACES)
    if OVERLAPS:
        gdc_wait()
    spot = products + tl.minimum(token, num_tokens - 1)[:, None] * EXPERTS + lane[None, :]
    made = tl.load(spot, mask=(lane < EXPERTS)[None, :], other=float("-inf"))
    if SOFTMAX:
        made = tl.exp(made - tl.max(made, 1)[:, None])
        made /= tl.sum(made, 1)[:, None]
    else:
        made = tl.sigmoid(made)
    by = made
    if HAS_BIAS:
        by += tl.load(bias + lane, mask=lane < EXPERTS, other=0.0)[None, :]
    by = tl.where((lane < EXPERTS)[None, :], by, float("-inf"))
    best, found = tl.zeros((ROWS, PLACES), tl.float32), tl.zeros((ROWS, PLACES), tl.int32)
    for i in tl.static_range(PER_TOKEN):
        # If scores are NaN no expert may be found, but one must be named.
        at = tl.minimum(tl.argmax(by, 1), EXPERTS - 1)
        mine, here = lane[None, :] == at[:, None], (place == i)[None, :]
        best = tl.where(here, tl.sum(tl.where(mine, made, 0.0), 1)[:, None], best)
        found = tl.where(here, at[:, None], found)
        by = tl.where(mine, float("-inf"), by)
    if RENORMALISE:
        best /= (tl.sum(best, 1) + least_sum)[:, None]
    into, kept = token[:, None] * PER_TOKEN + place[None, :], (place < PER_TOKEN)[None, :]
    tl.store(chosen + into, found.to(tl.int64), mask=inside[:, None] & kept)
    tl.store(scores + into, best * factor, mask=inside[:, None] & kept)


@kernel("num_pairs")
def count_pairs(
    chosen: tl.tensor,
    counts: tl.tensor,
    ranks: tl.tensor,
    num_pairs: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Count each expert's pairs, and number the pairs of each expert. The order is random, and
    nothing depends on it."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < num_pairs
    expert = tl.load(chosen + at, mask=inside, other=0)
    rank = tl.atomic_add(counts + expert, 1, mask=inside)
    tl.store(ranks + at, rank, mask=inside)


@part
def _tiles_of(
    counts: tl.tensor, EXPERTS: tl.constexpr, LANES: tl.constexpr, ROWS: tl.constexpr
) -> Any:
    """For each expert its number of pairs and of tiles."""
    lane = tl.arange(0, LANES)
    count = tl.load(counts + lane, mask=lane < EXPERTS, other=0)
    return count, (count + ROWS - 1) // ROWS


@part
def expert_of(
    counts: tl.tensor,
    tile: tl.tensor,
    EXPERTS: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
) -> Any:
    """The expert of a tile of pairs (EXPERTS: none, it is beyond the last one), the first tile of
    this expert, and the number of its pairs."""
    lane = tl.arange(0, LANES)
    count, tiles = _tiles_of(counts, EXPERTS, LANES, ROWS)
    ends = tl.cumsum(tiles, 0)
    expert = tl.sum((ends <= tile).to(tl.int32), 0)
    mine = lane == expert
    first = tl.sum(tl.where(mine, ends - tiles, 0), 0)
    return expert, first, tl.sum(tl.where(mine, count, 0), 0)


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
    """Sort pairs by expert; each expert's begin at a tile."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < num_pairs
    expert = tl.load(chosen + at, mask=inside, other=0)
    rank = tl.load(ranks + at, mask=inside, other=0)
    _, tiles = _tiles_of(counts, EXPERTS, LANES, ROWS)
    before = tl.arange(0, LANES)[None, :] < expert[:, None]
    first = tl.sum(tl.where(before, tiles[None, :], 0), 1)
    tl.store(ordered + first * ROWS + rank, at, mask=inside)


@kernel("num_pairs")
def arrange_pairs(
    chosen: tl.tensor,
    counts: tl.tensor,
    ordered: tl.tensor,
    num_pairs: tl.tensor,
    EXPERTS: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAPS: tl.constexpr,
) -> None:
    """count_pairs and order_pairs in one program, for at most BLOCK pairs."""
    lane, at = tl.arange(0, LANES), tl.arange(0, BLOCK)
    exists, inside = lane < EXPERTS, at < num_pairs
    if OVERLAPS:
        gdc_wait()
    expert = tl.load(chosen + at, mask=inside, other=0).to(tl.int32)
    tl.store(counts + lane, 0, mask=exists)
    tl.debug_barrier()
    rank = tl.atomic_add(counts + expert, 1, mask=inside)
    tl.debug_barrier()
    # Also by atomics: a plain load may return older values.
    count = tl.atomic_add(counts + lane, 0, mask=exists)
    tiles = tl.where(exists, (count + ROWS - 1) // ROWS, 0)
    begin = (tl.cumsum(tiles, 0) - tiles) * ROWS
    tl.store(ordered + tl.gather(begin, expert, 0) + rank, at, mask=inside)


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
    OVERLAPS: tl.constexpr,
) -> None:
    """out[pair] = x[pair // PER_ROW] weights[its expert]^T: a tile of one expert's pairs, COLUMNS
    columns of it. Columns of one tile are next to each other, so that its rows and its expert's
    weights are still near when they are read again. Programs beyond the last tile do nothing."""
    per_tile: tl.constexpr = (OUTER + COLUMNS - 1) // COLUMNS
    tile, strip = tl.program_id(0) // per_tile, tl.program_id(0) % per_tile
    if OVERLAPS:
        gdc_wait()
    expert, first, count = expert_of(counts, tile, EXPERTS, LANES, ROWS)
    if expert >= EXPERTS:
        return
    inside = (tile - first) * ROWS + tl.arange(0, ROWS) < count
    pair = tl.load(ordered + tile * ROWS + tl.arange(0, ROWS), mask=inside, other=0)
    column = strip * COLUMNS + tl.arange(0, COLUMNS)
    kept = column < OUTER
    # Columns after the last one read its weights, and are not written.
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
    OVERLAPS: tl.constexpr,
) -> None:
    """The results of a token's experts, each times its score, added in the order in which it chose
    them."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    if OVERLAPS:
        gdc_wait()
    total = tl.zeros([BLOCK], tl.float32)
    for i in tl.static_range(PER_TOKEN):
        pair = token * PER_TOKEN + i
        part = tl.load(made + pair * width + at, mask=inside, other=0.0).to(tl.float32)
        total += part * tl.load(scores + pair)
    tl.store(out + token * width + at, total.to(out.dtype.element_ty), mask=inside)
