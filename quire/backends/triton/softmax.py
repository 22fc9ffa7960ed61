"""What every attention kernel does with a stretch of tokens: load keys and values by block id, tile
by tile, and continue the softmax over all tiles so far.

Scores are in units of log2, so that only exp2 is needed. The state of a row is its largest score
`m`, the sum `mass` of exp2(score - m), and `acc`, the weighted values.

Block ids are read a tile ahead: copies that wait for ids that are read just before them could not
run while the tile before is computed.

An fp8 cache (fp8_kernels.py) is multiplied as float16, which represents every fp8 number. Scales
are applied neither to keys nor to values: a key's scale is multiplied into its scores, and a
value's is added, as log2, to the scores that become weights. So weights are at most 1 whatever the
scales, and only their sum must be divided by the scales again.
"""

from __future__ import annotations

from typing import Any

import triton.language as tl

from quire.backends.triton.fp8_kernels import SCALE_BYTES, fetch_pairs, fetch_scales
from quire.backends.triton.jit import part

# The score of "no key yet"; -inf would give -inf - -inf = NaN.
NOTHING = tl.constexpr(-1.0e30)


@part
def nothing_yet(QUERIES: tl.constexpr, PADDED: tl.constexpr) -> Any:
    """The state before the first tile: m, mass, acc."""
    m = tl.full([QUERIES], NOTHING, tl.float32)
    return m, tl.zeros([QUERIES], tl.float32), tl.zeros([QUERIES, PADDED], tl.float32)


@part
def finished(m: tl.tensor, mass: tl.tensor, acc: tl.tensor) -> Any:
    """(weighted mean, log2 of the sum of exp2); -inf where no key was seen."""
    seen = m > 0.5 * NOTHING
    mean = acc / tl.where(seen, mass, 1.0)[:, None]
    return mean, tl.where(seen, m + tl.log2(tl.where(seen, mass, 1.0)), float("-inf"))


@part
def with_sinks(mean: tl.tensor, log_sum: tl.tensor, sinks: tl.tensor) -> Any:
    """`finished`, with one more key for each query, whose value is 0 and whose score is its
    sink."""
    sinks = sinks.to(tl.float32) * 1.4426950408889634  # scores are in units of log2
    top = tl.maximum(log_sum, sinks)
    seen = tl.exp2(log_sum - top)
    total = seen + tl.exp2(sinks - top)
    return mean * (seen / total)[:, None], top + tl.log2(total)


@part
def fetched(
    places: tl.tensor,
    real: tl.tensor,
    there: tl.tensor,
    MASKED: tl.constexpr,
    WHOLE: tl.constexpr,
) -> Any:
    """The numbers at `places`; zeros where not `there`, and if MASKED where not `real`. WHOLE: all
    are there."""
    if MASKED:
        found = tl.load(places, mask=real if WHOLE else real & there, other=0.0)
    elif WHOLE:
        found = tl.load(places)
    else:
        found = tl.load(places, mask=there, other=0.0)
    return found


@part
def _hidden(
    scores: tl.tensor,
    index: tl.tensor,
    real: tl.tensor,
    first_seen: tl.tensor,
    last_seen: tl.tensor,
    HAS_FIRST: tl.constexpr,
    HAS_LAST: tl.constexpr,
) -> Any:
    """Scores of keys that a query does not see are NOTHING. What it sees is `real`: only where
    queries end a stretch themselves that goes without saying."""
    seen = index[None, :] <= last_seen[:, None] if HAS_LAST else real[None, :]
    if HAS_FIRST:
        seen = seen & (index[None, :] >= first_seen[:, None])
    return tl.where(seen, scores, NOTHING)


@part
def _weighed(scores: tl.tensor, by: tl.tensor, m: tl.tensor, mass: tl.tensor) -> Any:
    """(weights of scores x by, what those of earlier tiles shrink by, new m and mass)

    Where all scores of a query may be NOTHING, `by` must be 1: the rounding of their product,
    large as that is, would be its exponent.
    """
    new_m = tl.maximum(m, tl.max(scores, 1) * by)
    p = tl.exp2(scores * by - new_m[:, None])
    shrink = tl.exp2(m - new_m)
    return p, shrink, new_m, mass * shrink + tl.sum(p, 1)


@part
def _capped(scores: tl.tensor, SOFTCAP: tl.constexpr) -> Any:
    """SOFTCAP * tanh(scores / SOFTCAP), if there is one."""
    if SOFTCAP > 0.0:
        scores = SOFTCAP - 2.0 * SOFTCAP / (1.0 + tl.exp(2.0 * scores / SOFTCAP))
    return scores


@part
def attend_stretch(
    mine: tl.tensor,
    scale: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    table: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    first_seen: tl.tensor,
    last_seen: tl.tensor,
    head: tl.tensor,
    m: tl.tensor,
    mass: tl.tensor,
    acc: tl.tensor,
    HAS_FIRST: tl.constexpr,
    HAS_LAST: tl.constexpr,
    MASKED: tl.constexpr,
    BLIND: tl.constexpr,
    FIXED: tl.constexpr,
    KV_HEADS: tl.constexpr,
    SLOTS: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    PRECISION: tl.constexpr,
    SOFTCAP: tl.constexpr,
) -> Any:
    """m, mass, acc after tokens begin .. end as well, of which a query in `mine` may see only
    some: from its `first_seen` (HAS_FIRST), to its `last_seen` (HAS_LAST).

    MASKED: not all queries see all of every tile. BLIND: some may see nothing at all in a tile
    before they have seen anything. FIXED: tiles begin at multiples of KEYS, not where a block of
    `begin` does. SOFTCAP bounds scores, in units of log2; 0: nothing does.
    """
    at, step = tl.arange(0, PADDED), tl.arange(0, KEYS)
    there = at < WIDTH
    # A piece of a tile lies in one block.
    piece: tl.constexpr = KEYS if KEYS < SLOTS else SLOTS
    number = tl.arange(0, KEYS // piece)
    inside = (head * SLOTS + step % piece) * WIDTH
    k_lines = keys + (inside[None, :] + at[:, None])
    v_lines = values + (inside[:, None] + at[None, :])
    grain: tl.constexpr = KEYS if FIXED else piece
    start = begin // grain * grain
    block = tl.load(table + start // SLOTS + number, mask=start + number * piece < end, other=0)
    for base in range(start, end, KEYS):
        each = tl.reshape(tl.broadcast_to(block[:, None], (KEYS // piece, piece)), (KEYS,))
        away = each.to(tl.int64) * (KV_HEADS * SLOTS * WIDTH)
        if SLOTS > KEYS:
            away += base % SLOTS * WIDTH
        index = base + step
        real = (index - begin).to(tl.uint32) < (end - begin).to(tl.uint32)
        k = fetched(k_lines + away[None, :], real[None, :], there[:, None], MASKED, WIDTH == PADDED)
        # Values that were not loaded may be NaN, which a weight of 0 does not remove.
        v = fetched(v_lines + away[:, None], real[:, None], there[None, :], MASKED, WIDTH == PADDED)
        after = base + KEYS
        block = tl.load(table + after // SLOTS + number, mask=after + number * piece < end, other=0)
        scores = tl.dot(mine, k, input_precision=PRECISION)
        by = scale
        if BLIND or SOFTCAP > 0.0:
            scores = _capped(scores * scale, SOFTCAP)  # before any is hidden: see _weighed
            by = 1.0
        if MASKED:
            scores = _hidden(scores, index, real, first_seen, last_seen, HAS_FIRST, HAS_LAST)
        p, shrink, m, mass = _weighed(scores, by, m, mass)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
    return m, mass, acc


@part
def order_of_keys(KEYS: tl.constexpr) -> Any:
    """Which token of a tile in fp8 stands in which place: the even ones first, as their values
    come (fetch_pairs)."""
    place = tl.arange(0, KEYS)
    return tl.where(place < KEYS // 2, 2 * place, 2 * place - (KEYS - 1))


@part
def readied(q: tl.tensor) -> Any:
    """(queries as they are multiplied with keys in fp8, what to multiply the products with)"""
    wide = q.to(tl.float32)
    highest = tl.max(tl.abs(wide), 1)
    highest = tl.where(highest > 0.0, highest, 1.0)
    return (wide / highest[:, None]).to(tl.float16), highest


@part
def fetch_keys(
    keys: tl.tensor,
    block_ids: tl.tensor,
    index: tl.tensor,
    head: tl.tensor,
    at: tl.tensor,
    KV_HEADS: tl.constexpr,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    TURNED: tl.constexpr,
) -> Any:
    """Keys in fp8 of tokens `index`, without their scales, float16 [index, PADDED], or turned
    round [PADDED, index]. Tokens that are not there lie in block 0 and are anything: their scores
    are not used."""
    region = block_ids.to(tl.int64) * KV_HEADS + head
    slot = index.to(tl.uint32) % SLOTS
    first = region * (SLOTS * (WIDTH + SCALE_BYTES)) + (slot * WIDTH).to(tl.int64)
    if TURNED:
        place, wanted = keys + first[None, :] + at[:, None], (at < WIDTH)[:, None]
    else:
        place, wanted = keys + first[:, None] + at[None, :], (at < WIDTH)[None, :]
    found = tl.load(place) if WIDTH == PADDED else tl.load(place, mask=wanted, other=0.0)
    return found.to(tl.float16)


@part
def _attend_many_fp8(
    mine: tl.tensor,
    scale: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    table: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    open_end: tl.tensor,
    first_seen: tl.tensor,
    last_seen: tl.tensor,
    head: tl.tensor,
    HAS_FIRST: tl.constexpr,
    HAS_LAST: tl.constexpr,
    KV_HEADS: tl.constexpr,
    SLOTS: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
) -> Any:
    """attend_many over an fp8 cache."""
    at, step = tl.arange(0, PADDED), order_of_keys(KEYS)
    mine, highest = readied(mine)
    m, mass, acc = nothing_yet(mine.shape[0], PADDED)
    for base in range(begin, end, KEYS):
        index = base + step
        real = index < end
        block = tl.load(table + index // SLOTS, mask=real, other=0)
        k = fetch_keys(keys, block, index, head, at, KV_HEADS, SLOTS, WIDTH, PADDED, True)
        by = fetch_scales(keys, block, index, head, real, KV_HEADS, SLOTS, WIDTH)
        scores = tl.dot(mine, k) * ((highest * scale)[:, None] * tl.exp2(by)[None, :])
        by = fetch_scales(values, block, index, head, real, KV_HEADS, SLOTS, WIDTH)
        scores += by[None, :]
        if HAS_FIRST or base + KEYS > open_end:
            scores = _hidden(scores, index, real, first_seen, last_seen, HAS_FIRST, HAS_LAST)
        new_m = tl.maximum(m, tl.max(scores, 1))
        p = tl.exp2(scores - new_m[:, None])
        shrink = tl.exp2(m - new_m)
        even, odd = fetch_pairs(
            values, table, base, end, head, at, KV_HEADS, SLOTS, KEYS, WIDTH, PADDED, False
        )
        halves = tl.reshape(p, (mine.shape[0], 2, KEYS // 2))
        for_even, for_odd = tl.split(tl.permute(halves, (0, 2, 1)))
        acc = tl.dot(for_even.to(tl.float16), even, acc * shrink[:, None])
        acc = tl.dot(for_odd.to(tl.float16), odd, acc)
        mass = mass * shrink + tl.sum(p * tl.exp2(-by)[None, :], 1)
        m = new_m
    return m, mass, acc


@part
def attend_many(
    mine: tl.tensor,
    scale: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    table: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    open_end: tl.tensor,
    first_seen: tl.tensor,
    last_seen: tl.tensor,
    head: tl.tensor,
    HAS_FIRST: tl.constexpr,
    HAS_LAST: tl.constexpr,
    KV_HEADS: tl.constexpr,
    SLOTS: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    PRECISION: tl.constexpr,
    SOFTCAP: tl.constexpr,
) -> Any:
    """(weighted mean, log2-sum of the weights) of many queries, for which tokens are hidden from
    `open_end` on, or anywhere with HAS_FIRST; `begin` is where a block or a tile of KEYS begins.
    The rest as in attend_stretch."""
    if keys.dtype.element_ty == tl.float8e4nv:
        m, mass, acc = _attend_many_fp8(
            *(mine, scale, keys, values, table, begin, end, open_end, first_seen, last_seen, head),
            *(HAS_FIRST, HAS_LAST, KV_HEADS, SLOTS, KEYS, WIDTH, PADDED),
        )
    else:
        m, mass, acc = nothing_yet(mine.shape[0], PADDED)
        rest = begin
        if not HAS_FIRST:
            rest = begin + (open_end - begin) // KEYS * KEYS
            m, mass, acc = attend_stretch(
                *(mine, scale, keys, values, table, begin, rest, first_seen, last_seen, head),
                *(m, mass, acc, HAS_FIRST, HAS_LAST, False, False, False),
                *(KV_HEADS, SLOTS, KEYS, WIDTH, PADDED, PRECISION, SOFTCAP),
            )
        m, mass, acc = attend_stretch(
            *(mine, scale, keys, values, table, rest, end, first_seen, last_seen, head),
            *(m, mass, acc, HAS_FIRST, HAS_LAST, True, HAS_FIRST, False),
            *(KV_HEADS, SLOTS, KEYS, WIDTH, PADDED, PRECISION, SOFTCAP),
        )
    return finished(m, mass, acc)
