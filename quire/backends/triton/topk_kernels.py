"""Finds the limits of a line from its few likeliest tokens, collected in one pass over it."""

from __future__ import annotations

from typing import Any

import triton.language as tl

from quire.backends.triton.jit import part
from quire.backends.triton.order_kernels import order_of, value_at

NO_TOKEN = tl.constexpr(2147483647)


@part
def reached_by(order: tl.tensor, count: tl.tensor, low: tl.tensor, high: tl.tensor) -> Any:
    """The largest of low .. high that `count` of these reach; low if none is."""
    low, high = low.to(tl.int64), high.to(tl.int64)
    while low < high:
        middle = (low + high + 1) >> 1
        enough = tl.sum((order >= middle.to(tl.int32)).to(tl.int32), 0) >= count
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle - 1)
    return low.to(tl.int32)


@part
def _put_aside(
    logits: tl.tensor,
    vocab: tl.tensor,
    bound: tl.tensor,
    base: tl.tensor,
    top: tl.tensor,
    rate: tl.tensor,
    values: tl.tensor,
    ids: tl.tensor,
    counter: tl.tensor,
    ROOM: tl.constexpr,
    TILE: tl.constexpr,
) -> Any:
    """(how many logits reach `bound`, the mass of those that reach `base`); the first ROOM of
    the former are written to `values` and `ids`, in any order."""
    tl.atomic_xchg(counter, 0)
    tl.debug_barrier()
    mass = tl.zeros([TILE], tl.float32)
    shift = top * rate
    for first in range(0, vocab, TILE):
        token = first + tl.arange(0, TILE)
        x = tl.load(logits + token, mask=token < vocab, other=float("-inf")).to(tl.float32)
        mass += tl.where(x >= base, tl.exp2(x * rate - shift), 0.0)
        # Few reach it, so counting them one by one is cheaper than a sum.
        reaches = x >= bound
        place = tl.atomic_add(counter + tl.zeros([TILE], tl.int32), 1, mask=reaches)
        keep = reaches & (place < ROOM)
        tl.store(values + place, x, mask=keep)
        tl.store(ids + place, token, mask=keep)
    tl.debug_barrier()
    return tl.atomic_add(counter, 0), tl.sum(mass.to(tl.float64), 0)


@part
def _mass(order: tl.tensor, weight: tl.tensor, least: tl.tensor) -> Any:
    """The mass of tokens that reach `least`, added as integers: the same in any order."""
    whole = (tl.where(order >= least, weight, 0.0) * 1099511627776.0).to(tl.int64)
    return tl.sum(whole, 0).to(tl.float64) * (1.0 / 1099511627776.0)


@part
def _heavy_enough(
    order: tl.tensor, weight: tl.tensor, needed: tl.tensor, low: tl.tensor, high: tl.tensor
) -> Any:
    """(the largest of low .. high whose mass is `needed`, or low; the mass above it)"""
    low, high = low.to(tl.int64), high.to(tl.int64)
    above = tl.full([], 0.0, tl.float64)
    while low < high:
        middle = (low + high + 1) >> 1
        mass = _mass(order, weight, middle.to(tl.int32))
        enough = mass >= needed
        above = tl.where(enough, above, mass)
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle - 1)
    return low.to(tl.int32), above


@part
def _last_id(ids: tl.tensor, equal: tl.tensor, count: tl.tensor, vocab: tl.tensor) -> Any:
    """The count-th lowest of the ids that are `equal`; no bound if there are fewer."""
    low, high = tl.full([], 0, tl.int32), vocab
    while low < high:
        middle = (low + high) >> 1
        enough = tl.sum((equal & (ids <= middle)).to(tl.int32), 0) >= count
        high = tl.where(enough, middle, high)
        low = tl.where(enough, low, middle + 1)
    return tl.where(low < vocab, low, NO_TOKEN)


@part
def num_equal(needed: tl.tensor, above: tl.tensor, each: tl.tensor) -> Any:
    """How many tokens of mass `each` it takes to come from `above` to `needed`: at least 1."""
    count = tl.ceil((needed - above) / each.to(tl.float64))
    return tl.minimum(tl.maximum(count, 1.0), 2.0e9).to(tl.int32)


@part
def by_few(
    logits: tl.tensor,
    vocab: tl.tensor,
    bound: tl.tensor,
    base: tl.tensor,
    high: tl.tensor,
    top_k: tl.tensor,
    top_p: tl.tensor,
    top: tl.tensor,
    rate: tl.tensor,
    values: tl.tensor,
    ids: tl.tensor,
    counter: tl.tensor,
    ROOM: tl.constexpr,
    TILE: tl.constexpr,
    SHIFT: tl.constexpr,
) -> Any:
    """The same from the tokens that reach `bound`, and whether they were enough to say."""
    least = value_at(base, SHIFT)
    count, left = _put_aside(
        logits, vocab, value_at(bound, SHIFT), least, top, rate, values, ids, counter, ROOM, TILE
    )
    at = tl.arange(0, ROOM)
    x = tl.load(values + at, mask=at < count, other=float("-inf"))
    token = tl.load(ids + at, mask=at < count, other=NO_TOKEN)
    order, weight = order_of(x, SHIFT), tl.exp2(x * rate - top * rate)
    cut, last = bound, tl.full([], NO_TOKEN, tl.int32)
    if top_k > 0:
        cut = reached_by(order, top_k, bound, high)
    held = _mass(order, weight, cut)
    left = tl.where(top_k > 0, held, left)
    needed = top_p * left
    if top_p < 1.0:
        cut, above = _heavy_enough(order, weight, needed, cut, high)
        edge = value_at(cut, SHIFT)
        equal = num_equal(needed, above, tl.exp2(edge * rate - top * rate))
        last = _last_id(token, x == edge, equal, vocab)
    enough = (top_k > 0) | (bound == base) | (held >= needed)
    return cut, last, enough & (count <= ROOM)
