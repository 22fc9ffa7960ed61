"""Device code for min_p, top_k and top_p: a threshold, found by search.

Floats are compared as integers of the same order (order_kernels.py), and all three limits keep
tokens at or above some integer: top_k the largest integer that k tokens reach, top_p the largest
one whose tokens have enough mass. Equal logits at top_p's boundary are counted by rising token id.

Two passes over a line are enough if few tokens stay: the best of each lane give a bound that enough
tokens reach, and those are collected and searched without the line (topk_kernels.py). Otherwise
each pass over the line tries three thresholds and leaves a quarter of the range: 8 passes for the
16 bits of bfloat16.
"""

from __future__ import annotations

from typing import Any

import triton.language as tl

from quire.backends.triton.jit import kernel, part
from quire.backends.triton.order_kernels import order_of, value_at
from quire.backends.triton.topk_kernels import NO_TOKEN, by_few, num_equal, reached_by

_LOG2_E = tl.constexpr(1.4426950408889634)
_LOWEST = tl.constexpr(-3.4028234663852886e38)


@part
def _measure(
    logits: tl.tensor,
    vocab: tl.tensor,
    v1: tl.tensor,
    v2: tl.tensor,
    v3: tl.tensor,
    top: tl.tensor,
    rate: tl.tensor,
    BY_MASS: tl.constexpr,
    TILE: tl.constexpr,
) -> Any:
    """How many tokens, or how much mass (the likeliest token has 1), reach v1, v2 and v3."""
    s1 = tl.zeros([TILE], tl.float32)
    s2 = tl.zeros([TILE], tl.float32)
    s3 = tl.zeros([TILE], tl.float32)
    shift = top * rate
    for base in range(0, vocab, TILE):
        token = base + tl.arange(0, TILE)
        x = tl.load(logits + token, mask=token < vocab, other=float("-inf")).to(tl.float32)
        weight = tl.full([TILE], 1.0, tl.float32)
        if BY_MASS:
            weight = tl.exp2(x * rate - shift)
        s1 += tl.where(x >= v1, weight, 0.0)
        s2 += tl.where(x >= v2, weight, 0.0)
        s3 += tl.where(x >= v3, weight, 0.0)
    s1, s2, s3 = s1.to(tl.float64), s2.to(tl.float64), s3.to(tl.float64)
    return tl.sum(s1, 0), tl.sum(s2, 0), tl.sum(s3, 0)


@part
def _search(
    logits: tl.tensor,
    vocab: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    target: tl.tensor,
    top: tl.tensor,
    rate: tl.tensor,
    BY_MASS: tl.constexpr,
    TILE: tl.constexpr,
    SHIFT: tl.constexpr,
) -> Any:
    """(the largest of low .. high that the target is reached at, or low; what is above it)"""
    low, high = low.to(tl.int64), high.to(tl.int64)
    above = tl.full([], 0.0, tl.float64)
    while low < high:
        span = high - low
        p1, p2, p3 = low + (span + 3) // 4, low + (span + 1) // 2, low + (3 * span + 3) // 4
        v1, v2 = value_at(p1.to(tl.int32), SHIFT), value_at(p2.to(tl.int32), SHIFT)
        v3 = value_at(p3.to(tl.int32), SHIFT)
        f1, f2, f3 = _measure(logits, vocab, v1, v2, v3, top, rate, BY_MASS, TILE)
        in1, in2, in3 = f1 >= target, f2 >= target, f3 >= target
        above = tl.where(in3, above, tl.where(in2, f3, tl.where(in1, f2, f1)))
        high = tl.where(in3, high, tl.where(in2, p3 - 1, tl.where(in1, p2 - 1, p1 - 1)))
        low = tl.where(in3, p3, tl.where(in2, p2, tl.where(in1, p1, low)))
    return low.to(tl.int32), above


@part
def _likely_enough(
    top_order: tl.tensor,
    top: tl.tensor,
    temperature: tl.tensor,
    log_min_p: tl.tensor,
    SHIFT: tl.constexpr,
) -> Any:
    """The lowest place in the order whose score is within log_min_p of the top score."""
    low = order_of(tl.full([], _LOWEST, tl.float32), SHIFT).to(tl.int64)
    high = top_order.to(tl.int64)
    bound = tl.div_rn(top, temperature) + log_min_p
    while low < high:
        middle = (low + high) >> 1
        enough = tl.div_rn(value_at(middle.to(tl.int32), SHIFT), temperature) >= bound
        high = tl.where(enough, middle, high)
        low = tl.where(enough, low, middle + 1)
    return low.to(tl.int32)


@part
def _last_of(
    logits: tl.tensor, vocab: tl.tensor, cut: tl.tensor, count: tl.tensor, TILE: tl.constexpr
) -> Any:
    """The count-th token id whose logit is `cut`; no bound if there are fewer."""
    so_far, base = tl.full([], 0, tl.int32), tl.full([], 0, tl.int32)
    here = tl.full([], 0, tl.int32)
    while (so_far + here < count) & (base < vocab):
        so_far += here
        token = base + tl.arange(0, TILE)
        x = tl.load(logits + token, mask=token < vocab, other=float("-inf")).to(tl.float32)
        here = tl.sum((x == cut).to(tl.int32), 0)
        base += TILE
    token = base - TILE + tl.arange(0, TILE)
    inside = (token >= 0) & (token < vocab)
    x = tl.load(logits + token, mask=inside, other=float("-inf")).to(tl.float32)
    equal = (inside & (x == cut)).to(tl.int32)
    reached = (equal > 0) & (so_far + tl.cumsum(equal, 0) >= count)
    return tl.min(tl.where(reached, token, NO_TOKEN), 0)


@part
def _by_passes(
    logits: tl.tensor,
    vocab: tl.tensor,
    base: tl.tensor,
    high: tl.tensor,
    top_k: tl.tensor,
    top_p: tl.tensor,
    top: tl.tensor,
    rate: tl.tensor,
    TILE: tl.constexpr,
    SHIFT: tl.constexpr,
) -> Any:
    """(place in the order, last token id there) that top_k and top_p leave, from the line."""
    cut, last = base, tl.full([], NO_TOKEN, tl.int32)
    if top_k > 0:
        target = top_k.to(tl.float64)
        cut, _ = _search(logits, vocab, cut, high, target, top, rate, False, TILE, SHIFT)
    if top_p < 1.0:
        bound = value_at(cut, SHIFT)
        left, _, _ = _measure(logits, vocab, bound, bound, bound, top, rate, True, TILE)
        needed = top_p * left
        cut, above = _search(logits, vocab, cut, high, needed, top, rate, True, TILE, SHIFT)
        bound = value_at(cut, SHIFT)
        count = num_equal(needed, above, tl.exp2(bound * rate - top * rate))
        last = _last_of(logits, vocab, bound, count, TILE)
    return cut, last


@kernel()
def find_limits(
    logits: tl.tensor,
    rows: tl.tensor,
    temperatures: tl.tensor,
    top_ks: tl.tensor,
    log_min_ps: tl.tensor,
    top_ps: tl.tensor,
    leasts: tl.tensor,
    lasts: tl.tensor,
    values: tl.tensor,
    ids: tl.tensor,
    counters: tl.tensor,
    stride: tl.tensor,
    vocab: tl.tensor,
    ROOM: tl.constexpr,
    TILE: tl.constexpr,
    SHIFT: tl.constexpr,
) -> None:
    """A line's tokens stay if their logit is above `least`, or equal and their id <= `last`."""
    line = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + line)
    known = row >= 0
    temperature = tl.load(temperatures + row, mask=known, other=0.0)
    top_k = tl.load(top_ks + row, mask=known, other=0)
    log_min_p = tl.load(log_min_ps + row, mask=known, other=float("-inf"))
    top_p = tl.load(top_ps + row, mask=known, other=1.0)
    least = tl.full([], float("-inf"), tl.float32)
    last = tl.full([], NO_TOKEN, tl.int32)
    has_limits = (top_k > 0) | (log_min_p > float("-inf")) | (top_p < 1.0)
    if (temperature > 0.0) & has_limits:
        mine = logits + line * stride
        most = tl.full([TILE], float("-inf"), tl.float32)
        for first in range(0, vocab, TILE):
            token = first + tl.arange(0, TILE)
            x = tl.load(mine + token, mask=token < vocab, other=float("-inf"))
            most = tl.maximum(most, x.to(tl.float32))
        top = tl.max(most, 0)
        rate, high = _LOG2_E / temperature, order_of(top, SHIFT)
        base = _likely_enough(high, top, temperature, log_min_p, SHIFT)
        cut = base
        if (top_k > 0) | (top_p < 1.0):
            # k lanes whose best tokens reach a bound: then k tokens do.
            few = tl.where(top_k > 0, top_k, ROOM // 4)
            bound = reached_by(order_of(most, SHIFT), few, base, high)
            cut, last, enough = by_few(
                *(mine, vocab, bound, base, high, top_k, top_p, top, rate),
                *(values + line * ROOM, ids + line * ROOM, counters + line, ROOM, TILE, SHIFT),
            )
            if not enough:
                # Three sums per lane at once: half as many lanes keep them in registers.
                cut, last = _by_passes(
                    mine, vocab, base, high, top_k, top_p, top, rate, TILE // 2, SHIFT
                )
        least = value_at(cut, SHIFT)
    tl.store(leasts + line, least)
    tl.store(lasts + line, last)
