"""What every attention kernel does with a tile: fetch keys and values by block id, and go on
with the softmax of all tiles so far.

Scores are in units of log2, so that exp2 is all that is needed; a row's state is its largest
score `m`, the sum `mass` of exp2(score - m), and `acc`, the weighted values.
"""

from __future__ import annotations

from typing import Any

import triton.language as tl

from quire.kernels.triton.jit import part

# Stands for "no key yet"; -inf - -inf would be NaN.
NOTHING = tl.constexpr(-1.0e30)


@part
def fetch(
    cache: tl.tensor,
    block_ids: tl.tensor,
    index: tl.tensor,
    head: tl.tensor,
    inside: tl.tensor,
    at: tl.tensor,
    KV_HEADS: tl.constexpr,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    TURNED: tl.constexpr,
) -> Any:
    """Keys or values of tokens `index`, [index, PADDED], or turned round [PADDED, index]."""
    slot = (block_ids.to(tl.int64) * KV_HEADS + head) * SLOTS + index % SLOTS
    if TURNED:
        place = cache + slot[None, :] * WIDTH + at[:, None]
        wanted = inside[None, :]
        if WIDTH != PADDED:
            wanted = wanted & (at < WIDTH)[:, None]
    else:
        place = cache + slot[:, None] * WIDTH + at[None, :]
        wanted = inside[:, None]
        if WIDTH != PADDED:
            wanted = wanted & (at < WIDTH)[None, :]
    return tl.load(place, mask=wanted, other=0.0)


@part
def absorb(
    scores: tl.tensor,
    v: tl.tensor,
    m: tl.tensor,
    mass: tl.tensor,
    acc: tl.tensor,
    PRECISION: tl.constexpr,
) -> Any:
    """The state after one more tile; hidden scores are NOTHING."""
    new_m = tl.maximum(m, tl.max(scores, 1))
    p = tl.exp2(scores - new_m[:, None])
    shrink = tl.exp2(m - new_m)
    acc = acc * shrink[:, None]
    acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)
    return new_m, mass * shrink + tl.sum(p, 1), acc


@part
def finished(m: tl.tensor, mass: tl.tensor, acc: tl.tensor) -> Any:
    """(weighted mean, log2 of the sum of exp2); -inf where no key was seen."""
    seen = m > 0.5 * NOTHING
    mean = acc / tl.where(seen, mass, 1.0)[:, None]
    return mean, tl.where(seen, m + tl.log2(tl.where(seen, mass, 1.0)), float("-inf"))
