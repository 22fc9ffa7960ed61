"""Device code of states.py: many tokens at once.

Chunks of CHUNK tokens begin at multiples of CHUNK, so none goes beyond its block. The equations are
those of backends/delta_rule.py and backends/decay_rule.py.

For a NARROW model (bfloat16) products round what they multiply: to bfloat16 what may be of any
size, and what is at most about 1 to float16, which has more digits. Sums and states are float32.
"""

from __future__ import annotations

from typing import Any

import triton.language as tl

from quire.backends.triton.jit import kernel, part
from quire.backends.triton.state_kernels import numbers_of, softplus, unit
from quire.backends.triton.state_places import chunk_of, keep_state, loaded_state, span_of


@part
def _steps(
    rates: tl.tensor,
    token: tl.tensor,
    known: tl.tensor,
    head: tl.tensor,
    slope: tl.tensor,
    shift: tl.tensor,
    HEADS: tl.constexpr,
    LIMIT: tl.constexpr,
    CORRECTS: tl.constexpr,
) -> Any:
    """(rates of a chunk's tokens, logs of what is left of the state after each): both are 0 for
    tokens that are not `known`, so these change nothing."""
    own = rates + token.to(tl.int64) * ((1 + CORRECTS) * HEADS) + head
    first = tl.load(own, mask=known, other=0.0)
    if CORRECTS:
        rate = LIMIT / (1.0 + tl.exp(-first))
        step = softplus(tl.load(own + HEADS, mask=known, other=0.0) + shift)
    else:
        step = tl.maximum(softplus(first + shift), LIMIT)
        rate = step
    return tl.where(known, rate, 0.0), tl.cumsum(tl.where(known, -slope * step, 0.0), 0)


@part
def _between(reached: tl.tensor, t: tl.tensor) -> Any:
    """What is left after token i of what token j wrote, and 0 where j comes later [C, C]."""
    earlier = t[:, None] >= t[None, :]
    return tl.exp(tl.where(earlier, reached[:, None] - reached[None, :], float("-inf")))


@part
def _product(a: tl.tensor, b: tl.tensor, NARROW: tl.constexpr, PRECISION: tl.constexpr) -> Any:
    if NARROW:
        a, b = a.to(tl.bfloat16), b.to(tl.bfloat16)
    return tl.dot(a, b, input_precision=PRECISION)


@part
def _small_product(
    a: tl.tensor, b: tl.tensor, NARROW: tl.constexpr, PRECISION: tl.constexpr
) -> Any:
    """Of numbers that are at most about 1."""
    if NARROW:
        a, b = a.to(tl.float16), b.to(tl.float16)
    return tl.dot(a, b, input_precision=PRECISION)


@part
def _inverse(
    system: tl.tensor,
    t: tl.tensor,
    LEVELS: tl.constexpr,
    NARROW: tl.constexpr,
    PRECISION: tl.constexpr,
) -> Any:
    """The inverse of 1 + system, which is strictly lower. Its blocks double in size LEVELS times:
    [[A, 0], [C, B]]^-1 = [[A^-1, 0], [-B^-1 C A^-1, B^-1]]. Its numbers are at most about as large
    as a rate, since no token changes a state by more than it wants to."""
    inverse = tl.where(t[:, None] == t[None, :], 1.0, 0.0)
    for level in tl.static_range(LEVELS):
        mine, theirs = t[:, None] // 2**level, t[None, :] // 2**level
        below = tl.where((mine % 2 == 1) & (theirs == mine - 1), system, 0.0)
        if level == 0:
            inverse -= below
        else:
            half = _small_product(below, inverse, NARROW, PRECISION)
            inverse -= _small_product(inverse, half, NARROW, PRECISION)
    return inverse


@kernel("count")
def unit_keys(
    mixed: tl.tensor,
    count: tl.tensor,
    KEY_HEADS: tl.constexpr,
    KEY: tl.constexpr,
    KEY_PADDED: tl.constexpr,
    CHANNELS: tl.constexpr,
    TOKENS: tl.constexpr,
) -> None:
    """Scale queries and keys of some tokens to a length of about 1, in place."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    i = tl.arange(0, KEY_PADDED)
    there = (token < count)[:, None] & (i < KEY)[None, :]
    place = (mixed + token.to(tl.int64) * CHANNELS + tl.program_id(1) * KEY)[:, None] + i[None, :]
    x = tl.load(place, mask=there, other=0.0).to(tl.float32)
    tl.store(place, unit(x, 1), mask=there)


@kernel("table_stride", "sequences")
def solve_chunks(
    mixed: tl.tensor,
    rates: tl.tensor,
    log_slopes: tl.tensor,
    shifts: tl.tensor,
    solved: tl.tensor,
    query_starts: tl.tensor,
    context_lens: tl.tensor,
    tables: tl.tensor,
    rows: tl.tensor,
    table_stride: tl.tensor,
    owners: tl.tensor,
    ends: tl.tensor,
    sequences: tl.tensor,
    HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    IN_TURN: tl.constexpr,
    KEY: tl.constexpr,
    KEY_PADDED: tl.constexpr,
    CHANNELS: tl.constexpr,
    LIMIT: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    LEVELS: tl.constexpr,
    NARROW: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """For one chunk and head: the matrix that turns what its tokens want into what they write, as
    each takes into account what those before it write."""
    head, sequence = tl.program_id(1), tl.load(owners + tl.program_id(0))
    if sequence < sequences:
        first, start, context, _ = span_of(
            *(sequence, query_starts, context_lens, tables, rows, table_stride, HAS_ROWS)
        )
        low, high = chunk_of(tl.program_id(0), sequence, start, context, ends, CHUNK)
        t, i = tl.arange(0, CHUNK), tl.arange(0, KEY_PADDED)
        position = low // CHUNK * CHUNK + t
        known = (position >= low) & (position < high)
        token = first + position - start
        key_head = head % KEY_HEADS if IN_TURN else head // (HEADS // KEY_HEADS)
        line = mixed + token.to(tl.int64) * CHANNELS + (KEY_HEADS + key_head) * KEY
        there = known[:, None] & (i < KEY)[None, :]
        k = tl.load(line[:, None] + i[None, :], mask=there, other=0.0)
        slope, shift, _ = numbers_of(log_slopes, shifts, shifts, head, True)
        rate, reached = _steps(rates, token, known, head, slope, shift, HEADS, LIMIT, True)
        system = _product(k, tl.trans(k), NARROW, PRECISION) * _between(reached, t)
        system = tl.where(t[:, None] > t[None, :], system * rate[:, None], 0.0)
        inverse = _inverse(system, t, LEVELS, NARROW, PRECISION)
        place = solved + (token.to(tl.int64) * HEADS + head) * CHUNK
        tl.store(place[:, None] + t[None, :], inverse, mask=known[:, None])


@part
def _loaded(
    mixed: tl.tensor,
    token: tl.tensor,
    known: tl.tensor,
    head: tl.tensor,
    i: tl.tensor,
    j: tl.tensor,
    HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    IN_TURN: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    CHANNELS: tl.constexpr,
) -> Any:
    """q, k and v of a chunk's tokens for one head."""
    key_head = head % KEY_HEADS if IN_TURN else head // (HEADS // KEY_HEADS)
    line = (mixed + token.to(tl.int64) * CHANNELS)[:, None]
    wide, narrow = known[:, None] & (i < KEY)[None, :], known[:, None] & (j < VALUE)[None, :]
    q = tl.load(line + key_head * KEY + i[None, :], mask=wide, other=0.0)
    k = tl.load(line + (KEY_HEADS + key_head) * KEY + i[None, :], mask=wide, other=0.0)
    column = 2 * KEY_HEADS * KEY + head * VALUE + j
    v = tl.load(line + column[None, :], mask=narrow, other=0.0).to(tl.float32)
    return q, k, v


@part
def _taken_up(
    state: tl.tensor,
    q: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    rate: tl.tensor,
    reached: tl.tensor,
    solved: tl.tensor,
    known: tl.tensor,
    t: tl.tensor,
    KEY: tl.constexpr,
    CORRECTS: tl.constexpr,
    NARROW: tl.constexpr,
    PRECISION: tl.constexpr,
) -> Any:
    """(the state after a chunk, what its tokens read without what skips the state)"""
    written = v * rate[:, None]
    if CORRECTS:
        has = _product(k, state, NARROW, PRECISION)
        written -= has * (rate * tl.exp(reached))[:, None]
        lines = solved[:, None] + t[None, :]
        inverse = tl.load(lines, mask=known[:, None], other=0.0)
        written = _product(inverse, written, NARROW, PRECISION)
    scores = _product(q, tl.trans(k), NARROW, PRECISION) * _between(reached, t)
    read = _product(q, state, NARROW, PRECISION) * tl.exp(reached)[:, None]
    read += _product(scores, written, NARROW, PRECISION)
    if CORRECTS:
        read *= KEY**-0.5
    whole = tl.min(reached, 0)
    left = written * tl.exp(whole - reached)[:, None]
    added = _product(tl.trans(k), left, NARROW, PRECISION)
    return state * tl.exp(whole) + added, read


@kernel("table_stride", "most")
def take_up_chunks(
    mixed: tl.tensor,
    rates: tl.tensor,
    log_slopes: tl.tensor,
    shifts: tl.tensor,
    skips: tl.tensor,
    solved: tl.tensor,
    out: tl.tensor,
    query_starts: tl.tensor,
    context_lens: tl.tensor,
    tables: tl.tensor,
    states: tl.tensor,
    apart: tl.tensor,
    table_stride: tl.tensor,
    most: tl.tensor,
    HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    IN_TURN: tl.constexpr,
    KEY: tl.constexpr,
    KEY_PADDED: tl.constexpr,
    VALUE: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHANNELS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    SLOTS: tl.constexpr,
    LIMIT: tl.constexpr,
    CORRECTS: tl.constexpr,
    CHUNK: tl.constexpr,
    NARROW: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """Update some columns of one head's state with the chunks of a sequence of more than `most`
    tokens, one chunk after the other, and read from it for each token. If it CORRECTS the state,
    queries and keys have a length of 1."""
    first, start, context, table = span_of(
        *(tl.program_id(0), query_starts, context_lens, tables, tables, table_stride, False)
    )
    if context - start > most:
        tiles: tl.constexpr = (VALUE + COLUMNS - 1) // COLUMNS
        head, t, i = tl.program_id(1) // tiles, tl.arange(0, CHUNK), tl.arange(0, KEY_PADDED)
        j = tl.program_id(1) % tiles * COLUMNS + tl.arange(0, COLUMNS)
        slope, shift, skip = numbers_of(log_slopes, shifts, skips, head, CORRECTS)
        state = loaded_state(
            *(states, table, start, head, i, j, apart, KEY, VALUE, HALF, BLOCK, SLOTS)
        )
        for at in range(start // CHUNK * CHUNK, context, CHUNK):
            known = (at + t >= start) & (at + t < context)
            token = (first + at + t - start).to(tl.int64)
            own = (mixed, token, known, head, i, j)
            q, k, v = _loaded(*own, HEADS, KEY_HEADS, IN_TURN, KEY, VALUE, CHANNELS)
            rate, reached = _steps(rates, token, known, head, slope, shift, HEADS, LIMIT, CORRECTS)
            state, read = _taken_up(
                *(state, q, k, v, rate, reached, solved + (token * HEADS + head) * CHUNK),
                *(known, t, KEY, CORRECTS, NARROW, PRECISION),
            )
            made = out + ((token * HEADS + head) * VALUE)[:, None] + j[None, :]
            tl.store(made, read + v * skip, mask=known[:, None] & (j < VALUE)[None, :])
            if ((at + CHUNK) % SLOTS == 0) | (at + CHUNK >= context):
                keep_state(
                    states, table, at, state, head, i, j, apart, KEY, VALUE, HALF, BLOCK, SLOTS
                )
