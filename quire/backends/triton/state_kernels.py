"""Device code of states.py: tokens one after the other."""

from __future__ import annotations

from typing import Any

import triton.language as tl

from quire.backends.triton.jit import kernel, part
from quire.backends.triton.state_places import keep_state, loaded_state, span_of

_LENGTH_EPS = tl.constexpr(1e-6)  # as in backends/recurrences.py


@part
def unit(x: tl.tensor, AXIS: tl.constexpr) -> Any:
    """Vectors along an axis, scaled to a length of about 1."""
    return x * tl.rsqrt(tl.sum(x * x, AXIS, keep_dims=True) + _LENGTH_EPS)


@part
def softplus(x: tl.tensor) -> Any:
    """log(1 + exp(x)), also where exp(x) is tiny compared with 1."""
    e = tl.exp(tl.minimum(x, 20.0))
    small = e * (1.0 - e * (0.5 - e * (1.0 / 3.0)))
    return tl.where(x > 20.0, x, tl.where(e < 0.01, small, tl.log(1.0 + e)))


@part
def _take_up(
    state: tl.tensor,
    q: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    rate: tl.tensor,
    step: tl.tensor,
    slope: tl.tensor,
    skip: tl.tensor,
    KEY: tl.constexpr,
    LIMIT: tl.constexpr,
    CORRECTS: tl.constexpr,
) -> Any:
    """(the state after a token, what the token reads from it); `step`: before its softplus, and at
    least LIMIT where it does not correct."""
    step, skipped = softplus(step), v * skip
    if CORRECTS:
        q, k = unit(q, 0) * KEY**-0.5, unit(k, 0)
    else:
        step = tl.maximum(step, LIMIT)
        rate = step
    state *= tl.exp(-slope * step)
    if CORRECTS:
        v -= tl.sum(state * k[:, None], 0)
    state += k[:, None] * (v * rate)[None, :]
    return state, tl.sum(state * q[:, None], 0) + skipped


@part
def _fetch(
    mixed: tl.tensor,
    rates: tl.tensor,
    token: tl.tensor,
    head: tl.tensor,
    key_head: tl.tensor,
    i: tl.tensor,
    j: tl.tensor,
    HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    CHANNELS: tl.constexpr,
    CORRECTS: tl.constexpr,
    LIMIT: tl.constexpr,
) -> Any:
    """q, k and v of a token for one head, its rate (up to LIMIT) if it has one, and the input of
    its decay."""
    line = mixed + token.to(tl.int64) * CHANNELS
    q = tl.load(line + key_head * KEY + i, mask=i < KEY, other=0.0).to(tl.float32)
    k = tl.load(line + (KEY_HEADS + key_head) * KEY + i, mask=i < KEY, other=0.0).to(tl.float32)
    v = tl.load(line + 2 * KEY_HEADS * KEY + head * VALUE + j, mask=j < VALUE, other=0.0).to(
        tl.float32
    )
    own = rates + token.to(tl.int64) * ((1 + CORRECTS) * HEADS) + head
    first = tl.load(own)
    decay = tl.load(own + HEADS) if CORRECTS else first
    return q, k, v, LIMIT / (1.0 + tl.exp(-first)), decay


@part
def numbers_of(
    log_slopes: tl.tensor,
    shifts: tl.tensor,
    skips: tl.tensor,
    head: tl.tensor,
    CORRECTS: tl.constexpr,
) -> Any:
    """(slope, shift, skip) of a head; one that CORRECTS skips nothing."""
    skip = 0.0 if CORRECTS else tl.load(skips + head)
    return tl.exp(tl.load(log_slopes + head)), tl.load(shifts + head), skip


@kernel("table_stride", "most")
def take_up_tokens(
    mixed: tl.tensor,
    rates: tl.tensor,
    log_slopes: tl.tensor,
    shifts: tl.tensor,
    skips: tl.tensor,
    out: tl.tensor,
    query_starts: tl.tensor,
    context_lens: tl.tensor,
    tables: tl.tensor,
    rows: tl.tensor,
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
    HAS_ROWS: tl.constexpr,
) -> None:
    """Update some columns of one head's state with a sequence's tokens, one after the other; those
    of sequences with more than `most` are taken up elsewhere. Each CORRECTS the state, or adds to
    it what its step says."""
    tiles: tl.constexpr = (VALUE + COLUMNS - 1) // COLUMNS
    head = tl.program_id(1) // tiles
    i, j = tl.arange(0, KEY_PADDED), tl.program_id(1) % tiles * COLUMNS + tl.arange(0, COLUMNS)
    key_head = head % KEY_HEADS if IN_TURN else head // (HEADS // KEY_HEADS)
    first, start, context, table = span_of(
        *(tl.program_id(0), query_starts, context_lens, tables, rows, table_stride, HAS_ROWS)
    )
    if (context > start) & (context - start <= most):
        slope, shift, skip = numbers_of(log_slopes, shifts, skips, head, CORRECTS)
        state = loaded_state(
            *(states, table, start, head, i, j, apart, KEY, VALUE, HALF, BLOCK, SLOTS)
        )
        for position in range(start, context):
            token = first + position - start
            q, k, v, rate, decay = _fetch(
                *(mixed, rates, token, head, key_head, i, j),
                *(HEADS, KEY_HEADS, KEY, VALUE, CHANNELS, CORRECTS, LIMIT),
            )
            state, read = _take_up(
                state, q, k, v, rate, decay + shift, slope, skip, KEY, LIMIT, CORRECTS
            )
            tl.store(out + (token.to(tl.int64) * HEADS + head) * VALUE + j, read, mask=j < VALUE)
            if ((position + 1) % SLOTS == 0) | (position + 1 == context):
                keep_state(
                    *(states, table, position, state, head, i, j, apart),
                    *(KEY, VALUE, HALF, BLOCK, SLOTS),
                )
