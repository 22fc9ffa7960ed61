"""Device code for rows that draw ahead of their masks and have limits (top_k, top_p, min_p).

Such a row draws from all tokens, without its limits and its mask. If the mask allows the token, it
is the token that the row would draw with both, provided that it is within the limits for any mask:
a mask only removes tokens, so no more tokens can be above the drawn one, and the largest score can
only become lower. For top_p the mass below it may vanish: the token is safe if it stays within
top_p even if the tokens above it and itself are all that is left.
"""

from __future__ import annotations

import triton.language as tl

from quire.backends.triton.jit import kernel
from quire.backends.triton.steps import FROZEN

_LOG2_E = tl.constexpr(1.4426950408889634)
# A margin for masses: sums in another order, one of which decides with the mask, may differ so
# much.
_NEARLY = tl.constexpr(0.999)


@kernel("column_stride", "count")
def lift_limits(
    rows: tl.tensor,
    columns: tl.tensor,
    limited: tl.tensor,
    column_stride: tl.tensor,
    count: tl.tensor,
    WIDTH: tl.constexpr,
) -> None:
    """limited[i] becomes rows[i], or -1 if that row has a line of masks of its own (column 8)."""
    at = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    row = tl.load(rows + at, mask=at < count, other=-1)
    masked_by = tl.load(columns + 8 * column_stride + row, mask=row >= 0, other=-1)
    tl.store(limited + at, tl.where(masked_by == row, -1, row), mask=at < count)


@kernel("ints_stride")
def rest_in_doubt(
    scratch: tl.tensor,
    rows: tl.tensor,
    limited: tl.tensor,
    tokens: tl.tensor,
    temperatures: tl.tensor,
    top_ks: tl.tensor,
    log_min_ps: tl.tensor,
    top_ps: tl.tensor,
    ints: tl.tensor,
    ints_stride: tl.tensor,
    stride: tl.tensor,
    vocab: tl.tensor,
    TILE: tl.constexpr,
) -> None:
    """Row rows[i] drew tokens[i] from line i. Freeze rows that drew without limits (limited[i] < 0)
    and might have drawn another token with them."""
    line = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + line)
    free = (row >= 0) & (tl.load(limited + line) < 0)
    temperature = tl.load(temperatures + row, mask=free, other=0.0)
    if temperature > 0.0:
        mine, drawn = scratch + line * stride, tl.load(tokens + line)
        own, rate = tl.load(mine + drawn), _LOG2_E / temperature
        most = tl.full([TILE], float("-inf"), tl.float32)
        count, mass = tl.zeros([TILE], tl.int32), tl.zeros([TILE], tl.float32)
        for first in range(0, vocab, TILE):
            token = first + tl.arange(0, TILE)
            x = tl.load(mine + token, mask=token < vocab, other=float("-inf"))
            above = (x >= own) & (token != drawn)
            most = tl.maximum(most, x)
            count += above.to(tl.int32)
            mass += tl.where(above, tl.exp2((x - own) * rate), 0.0)
        top_k, top_p = tl.load(top_ks + row), tl.load(top_ps + row)
        score, top = tl.div_rn(own, temperature), tl.div_rn(tl.max(most, 0), temperature)
        within = (top_k == 0) | (tl.sum(count, 0) < top_k)
        within &= score >= top + tl.load(log_min_ps + row)
        weight = tl.sum(mass.to(tl.float64), 0)
        within &= (top_p >= 1.0) | (weight * (1.0 - top_p) < top_p * _NEARLY)
        if not within:
            tl.store(ints + FROZEN * ints_stride + row, 1)
