"""What every attention kernel does with a tile: fetch keys and values by block id, and go on
with the softmax of all tiles so far.

Scores are in units of log2, so that exp2 is all that is needed; a row's state is its largest
score `m`, the sum `mass` of exp2(score - m), and `acc`, the weighted values.

A cache in fp8 (fp8_code.py) is multiplied as float16, which holds every number of fp8. Scales
touch neither keys nor values: a key's is multiplied into its scores, and a value's is added, as
log2, to the scores that become weights. So weights are at most 1 whatever the scales are, and
only their sum has to take the scales out again.
"""

from __future__ import annotations

from typing import Any

import triton.language as tl

from quire.kernels.triton.fp8_code import SCALE_BYTES, fetch_pairs, fetch_scales
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
    """Keys or values of tokens `index`, [index, PADDED], or turned round [PADDED, index]; of a
    cache in fp8 keys alone, without their scales."""
    region = block_ids.to(tl.int64) * KV_HEADS + head
    if cache.dtype.element_ty == tl.float8e4nv:
        slot = index.to(tl.uint32) % SLOTS
        first = region * (SLOTS * (WIDTH + SCALE_BYTES)) + (slot * WIDTH).to(tl.int64)
    else:
        first = (region * SLOTS + index % SLOTS) * WIDTH
    if TURNED:
        place = cache + first[None, :] + at[:, None]
        wanted = inside[None, :]
        if WIDTH != PADDED:
            wanted = wanted & (at < WIDTH)[:, None]
    else:
        place = cache + first[:, None] + at[None, :]
        wanted = inside[:, None]
        if WIDTH != PADDED:
            wanted = wanted & (at < WIDTH)[None, :]
    if cache.dtype.element_ty == tl.float8e4nv and WIDTH == PADDED:
        # Tokens that are not `inside` lie in block 0, and no byte is NaN.
        found = tl.load(place).to(tl.float16)
    else:
        found = tl.load(place, mask=wanted, other=0.0)
        if cache.dtype.element_ty == tl.float8e4nv:
            found = found.to(tl.float16)
    return found


@part
def order_of_keys(keys: tl.tensor, KEYS: tl.constexpr) -> Any:
    """Which token of a tile stands in which place: in fp8 the even ones first, as their values
    come (fetch_pairs)."""
    place = tl.arange(0, KEYS)
    if keys.dtype.element_ty == tl.float8e4nv:
        place = tl.where(place < KEYS // 2, 2 * place, 2 * place - (KEYS - 1))
    return place


@part
def nothing_yet(QUERIES: tl.constexpr, PADDED: tl.constexpr) -> Any:
    """The state before the first tile: m, mass, acc."""
    m = tl.full([QUERIES], NOTHING, tl.float32)
    return m, tl.zeros([QUERIES], tl.float32), tl.zeros([QUERIES, PADDED], tl.float32)


@part
def readied(q: tl.tensor, keys: tl.tensor, scale: tl.tensor) -> Any:
    """(queries as they are multiplied with keys, what to multiply their products with)"""
    if keys.dtype.element_ty == tl.float8e4nv:
        wide = q.to(tl.float32)
        highest = tl.max(tl.abs(wide), 1)
        highest = tl.where(highest > 0.0, highest, 1.0)
        return (wide / highest[:, None]).to(tl.float16), highest * scale
    else:  # noqa: RET505 - Triton compiles what comes after a return, too
        return q, scale


@part
def scored(
    mine: tl.tensor,
    scale: tl.tensor,
    keys: tl.tensor,
    block_ids: tl.tensor,
    index: tl.tensor,
    head: tl.tensor,
    inside: tl.tensor,
    at: tl.tensor,
    KV_HEADS: tl.constexpr,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    PRECISION: tl.constexpr,
) -> Any:
    """The scores of `readied` queries against the keys of tokens `index`."""
    k = fetch(keys, block_ids, index, head, inside, at, KV_HEADS, SLOTS, WIDTH, PADDED, True)
    products = tl.dot(mine, k, input_precision=PRECISION)
    if keys.dtype.element_ty == tl.float8e4nv:
        by = fetch_scales(keys, block_ids, index, head, inside, KV_HEADS, SLOTS, WIDTH)
        products *= scale[:, None] * tl.exp2(by)[None, :]
    else:
        products *= scale
    return products


@part
def absorb(
    scores: tl.tensor,
    values: tl.tensor,
    table: tl.tensor,
    block_ids: tl.tensor,
    base: tl.tensor,
    index: tl.tensor,
    end: tl.tensor,
    head: tl.tensor,
    inside: tl.tensor,
    at: tl.tensor,
    m: tl.tensor,
    mass: tl.tensor,
    acc: tl.tensor,
    KV_HEADS: tl.constexpr,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    PRECISION: tl.constexpr,
) -> Any:
    """The state after the tile of tokens `index`, from `base` to below `end` in order_of_keys,
    which lie in `block_ids` of `table`; hidden scores are NOTHING."""
    queries: tl.constexpr = scores.shape[0]
    keys: tl.constexpr = scores.shape[1]
    if values.dtype.element_ty == tl.float8e4nv:
        by = fetch_scales(values, block_ids, index, head, inside, KV_HEADS, SLOTS, WIDTH)
        scores += by[None, :]
    else:
        v = fetch(values, block_ids, index, head, inside, at, KV_HEADS, SLOTS, WIDTH, PADDED, False)
    new_m = tl.maximum(m, tl.max(scores, 1))
    p = tl.exp2(scores - new_m[:, None])
    shrink = tl.exp2(m - new_m)
    acc = acc * shrink[:, None]
    if values.dtype.element_ty == tl.float8e4nv:
        even, odd = fetch_pairs(
            values, table, base, end, head, at, KV_HEADS, SLOTS, keys, WIDTH, PADDED, False
        )
        halves = tl.reshape(p, (queries, 2, keys // 2))
        for_even, for_odd = tl.split(tl.permute(halves, (0, 2, 1)))
        acc = tl.dot(for_even.to(tl.float16), even, acc)
        acc = tl.dot(for_odd.to(tl.float16), odd, acc)
        p *= tl.exp2(-by)[None, :]
    else:
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)
    return new_m, mass * shrink + tl.sum(p, 1), acc


@part
def finished(m: tl.tensor, mass: tl.tensor, acc: tl.tensor) -> Any:
    """(weighted mean, log2 of the sum of exp2); -inf where no key was seen."""
    seen = m > 0.5 * NOTHING
    mean = acc / tl.where(seen, mass, 1.0)[:, None]
    return mean, tl.where(seen, m + tl.log2(tl.where(seen, mass, 1.0)), float("-inf"))
