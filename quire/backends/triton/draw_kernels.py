"""Device code for drawing: scores plus noise, and the largest sum.

The noise is defined by logarithms in float64, which would take most of the time. So every token
first gets approximate noise in float32, and only those within its error of the largest are computed
as defined: one or two of a tile.
"""

from __future__ import annotations

from typing import Any

import triton.language as tl

from quire.backends.triton.jit import kernel, part
from quire.steps.row_schema import EMPTY, UNSOUND

LANE = tl.constexpr(1024)
TILE = tl.constexpr(4096)
_NO_TOKEN = tl.constexpr(2147483647)
_UNSOUND, _EMPTY = tl.constexpr(UNSOUND), tl.constexpr(EMPTY)


@part
def _uniform(word: tl.tensor) -> Any:
    return tl.minimum((word.to(tl.float32) + 0.5) * (1.0 / 4294967296.0), 1.0 - 1.0 / 16777216.0)


@part
def _rough_gumbel(word: tl.tensor) -> Any:
    """The noise within 1e-4."""
    u = _uniform(word)
    series = u * (1.0 + u * (0.5 + u * (0.33333334 + u * 0.25)))
    return -tl.log(tl.where(u < 0.015625, series, -tl.log(1.0 - u)))


@part
def _gumbel(word: tl.tensor) -> Any:
    """The noise as defined: logarithms in float64, rounded once."""
    u = _uniform(word).to(tl.float64)
    # -log1p(-u): 1 - u is exact from 2**-20 on, and below three terms are all of it.
    series = u * (1.0 + u * (0.5 + u * (1.0 / 3.0)))
    exponential = tl.where(u < 1.0 / 1048576.0, series, -tl.log(1.0 - u))
    return (-tl.log(exponential)).to(tl.float32)


@part
def _exact(
    logits: tl.tensor,
    token: tl.tensor,
    temperature: tl.tensor,
    noise_key: tl.tensor,
    position: tl.tensor,
    sample: tl.tensor,
) -> Any:
    """The noisy score of one token, as defined."""
    logit = tl.load(logits + token).to(tl.float32)
    block = token // TILE * LANE + token % LANE
    w0, w1, w2, w3 = tl.philox(noise_key, block, position, sample, 0)
    lane = token // LANE % 4
    word = tl.where(lane == 0, w0, tl.where(lane == 1, w1, tl.where(lane == 2, w2, w3)))
    return tl.div_rn(logit, temperature) + _gumbel(word)


@part
def _scores(
    logits: tl.tensor,
    token: tl.tensor,
    vocab: tl.tensor,
    inverse: tl.tensor,
    least: tl.tensor,
    last: tl.tensor,
    bad: tl.tensor,
    TRUNCATED: tl.constexpr,
) -> Any:
    """(scores of some tokens, -inf where they may not be drawn; the largest logits, or NaN)"""
    x = tl.load(logits + token, mask=token < vocab, other=float("-inf")).to(tl.float32)
    bad = tl.maximum(bad, x, propagate_nan=tl.PropagateNan.ALL)
    score = x * inverse
    if TRUNCATED:
        score = tl.where((x > least) | ((x == least) & (token <= last)), score, float("-inf"))
    return score, bad


@part
def _may_win(score: tl.tensor, word: tl.tensor, bound: tl.tensor) -> Any:
    """Whether score plus noise may reach the bound: true wherever it does, and rarely elsewhere.

    The noise is at most -log(u), because -log1p(-u) >= u; a small margin is added.
    """
    return word.to(tl.float32) <= tl.exp2((score - bound) * 1.44269504 + 32.0) * 1.0001


@part
def _unsound(largest: tl.tensor) -> Any:
    """1 if some of these are NaN or +inf."""
    return tl.max(((largest != largest) | (largest == float("inf"))).to(tl.int32), 0)


@part
def _best_of_greedy(
    logits: tl.tensor, vocab: tl.tensor, split: tl.tensor, splits: tl.tensor
) -> Any:
    """(largest logit, its lowest token, bad) of every splits-th tile."""
    lane = tl.arange(0, TILE)
    best = tl.full([TILE], float("-inf"), tl.float32)
    chosen = tl.zeros([TILE], tl.int32)
    for base in range(split * TILE, vocab, splits * TILE):
        token = base + lane
        x = tl.load(logits + token, mask=token < vocab, other=float("-inf")).to(tl.float32)
        chosen = tl.where(x > best, token, chosen)
        best = tl.maximum(x, best, propagate_nan=tl.PropagateNan.ALL)
    top = tl.max(best, 0)
    return top, tl.min(tl.where(best == top, chosen, _NO_TOKEN), 0), _unsound(best)


@part
def _first_with(
    value: tl.tensor, a: tl.tensor, b: tl.tensor, c: tl.tensor, d: tl.tensor, token: tl.tensor
) -> Any:
    """The lowest token whose rough score is the value."""
    found = tl.where(a == value, token, _NO_TOKEN)
    found = tl.minimum(found, tl.where(b == value, token + LANE, _NO_TOKEN))
    found = tl.minimum(found, tl.where(c == value, token + 2 * LANE, _NO_TOKEN))
    return tl.min(tl.minimum(found, tl.where(d == value, token + 3 * LANE, _NO_TOKEN)), 0)


@part
def _largest(a: tl.tensor, b: tl.tensor, c: tl.tensor, d: tl.tensor) -> Any:
    return tl.max(tl.maximum(tl.maximum(a, b), tl.maximum(c, d)), 0)


@part
def _best_of_random(
    logits: tl.tensor,
    vocab: tl.tensor,
    split: tl.tensor,
    splits: tl.tensor,
    temperature: tl.tensor,
    noise_key: tl.tensor,
    position: tl.tensor,
    sample: tl.tensor,
    least: tl.tensor,
    last: tl.tensor,
    TRUNCATED: tl.constexpr,
) -> Any:
    """(largest noisy score, its lowest token, bad) of every splits-th tile.

    A tile's tokens that may beat the best so far are looked at one by one, the roughly best
    first: after that one hardly any is left.
    """
    lane = tl.arange(0, LANE)
    inverse = 1.0 / temperature
    best, chosen = tl.full([], -1.0e30, tl.float32), tl.full([], _NO_TOKEN, tl.int32)
    bad = tl.full([LANE], float("-inf"), tl.float32)
    for base in range(split * TILE, vocab, splits * TILE):
        token = base + lane
        w0, w1, w2, w3 = tl.philox(noise_key, base // 4 + lane, position, sample, 0)
        a, bad = _scores(logits, token, vocab, inverse, least, last, bad, TRUNCATED)
        b, bad = _scores(logits, token + LANE, vocab, inverse, least, last, bad, TRUNCATED)
        c, bad = _scores(logits, token + 2 * LANE, vocab, inverse, least, last, bad, TRUNCATED)
        d, bad = _scores(logits, token + 3 * LANE, vocab, inverse, least, last, bad, TRUNCATED)
        bound = best - 1e-3 - tl.abs(best) * (1.0 / 2097152.0)
        hit = _may_win(a, w0, bound) | _may_win(b, w1, bound)
        hit = hit | _may_win(c, w2, bound) | _may_win(d, w3, bound)
        if tl.max(hit.to(tl.int32), 0) > 0:
            a, b = a + _rough_gumbel(w0), b + _rough_gumbel(w1)
            c, d = c + _rough_gumbel(w2), d + _rough_gumbel(w3)
            top = _largest(a, b, c, d)
            bound = tl.maximum(top, best)
            bound = bound - 1e-3 - tl.abs(bound) * (1.0 / 2097152.0)
            while (top >= bound) & (top > float("-inf")):
                found = _first_with(top, a, b, c, d, token)
                exact = _exact(logits, found, temperature, noise_key, position, sample)
                wins = (exact > best) | ((exact == best) & (found < chosen))
                best, chosen = tl.where(wins, exact, best), tl.where(wins, found, chosen)
                a = tl.where(token == found, float("-inf"), a)
                b = tl.where(token + LANE == found, float("-inf"), b)
                c = tl.where(token + 2 * LANE == found, float("-inf"), c)
                d = tl.where(token + 3 * LANE == found, float("-inf"), d)
                top = _largest(a, b, c, d)
    return best, chosen, _unsound(bad)


@kernel("width")
def draw(
    logits: tl.tensor,
    rows: tl.tensor,
    positions: tl.tensor,
    temperatures: tl.tensor,
    noise_keys: tl.tensor,
    samples: tl.tensor,
    leasts: tl.tensor,
    lasts: tl.tensor,
    scores: tl.tensor,
    finalists: tl.tensor,
    unsound: tl.tensor,
    stride: tl.tensor,
    vocab: tl.tensor,
    width: tl.tensor,
    TRUNCATED: tl.constexpr,
) -> None:
    """Every num_programs(1)-th tile of a line, and the best of them."""
    line, split, splits = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    row = tl.load(rows + line)
    if row >= 0:
        mine = logits + line.to(tl.int64) * stride
        temperature = tl.load(temperatures + row)
        if temperature > 0.0:
            noise_key, sample = tl.load(noise_keys + row), tl.load(samples + row).to(tl.int32)
            position = tl.load(positions + line).to(tl.int32)
            least, last = temperature, row
            if TRUNCATED:
                least, last = tl.load(leasts + line), tl.load(lasts + line)
            best, chosen, bad = _best_of_random(
                *(mine, vocab, split, splits, temperature, noise_key, position, sample),
                *(least, last, TRUNCATED),
            )
        else:
            best, chosen, bad = _best_of_greedy(mine, vocab, split, splits)
        tl.store(scores + line * width + split, best)
        tl.store(finalists + line * width + split, chosen)
        tl.store(unsound + line * width + split, bad)


@kernel("splits", "width")
def pick(
    rows: tl.tensor,
    scores: tl.tensor,
    finalists: tl.tensor,
    unsound: tl.tensor,
    tokens: tl.tensor,
    failed: tl.tensor,
    splits: tl.tensor,
    width: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """The best of a line's parts; of equal ones the lowest token. `failed` says why there is none
    (row_schema.py)."""
    line = tl.program_id(0)
    known = tl.load(rows + line) >= 0
    at = tl.arange(0, BLOCK)
    inside = (at < splits) & known  # without a row nothing was written
    score = tl.load(scores + line * width + at, mask=inside, other=float("-inf"))
    token = tl.load(finalists + line * width + at, mask=inside, other=_NO_TOKEN)
    bad = tl.max(tl.load(unsound + line * width + at, mask=inside, other=0), 0)
    best = tl.max(score, 0)
    chosen = tl.min(tl.where(score == best, token, _NO_TOKEN), 0)
    fails = tl.where(bad > 0, _UNSOUND, tl.where(best <= -1.0e30, _EMPTY, 0))
    fails = tl.where(known, fails, 0)
    tl.store(tokens + line, tl.where((fails > 0) | (not known), 0, chosen).to(tl.int64))
    tl.store(failed + line, fails.to(tl.uint8))
