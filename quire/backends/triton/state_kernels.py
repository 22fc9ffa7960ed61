"""Device code of states.py."""

from __future__ import annotations

from typing import Any

import triton.language as tl

from quire.backends.triton.jit import kernel, part

_LENGTH_EPS = tl.constexpr(1e-6)  # as in backends/states.py


@part
def _span(
    query_starts: tl.tensor,
    context_lens: tl.tensor,
    tables: tl.tensor,
    rows: tl.tensor,
    table_stride: tl.tensor,
    HAS_ROWS: tl.constexpr,
) -> Any:
    """(first token of a sequence in the pass, its position, the length with it, its table)"""
    sequence = tl.program_id(0)
    first = tl.load(query_starts + sequence).to(tl.int32)
    end = tl.load(query_starts + sequence + 1).to(tl.int32)
    context = tl.load(context_lens + sequence).to(tl.int32)
    # An idle row has no context, whatever its input.
    start = tl.where(context > 0, context - (end - first), 0)
    line = tl.load(rows + sequence).to(tl.int64) if HAS_ROWS else sequence.to(tl.int64)
    return first, start, context, tables + line * table_stride


@part
def _place(block: tl.tensor, number: tl.tensor, apart: tl.tensor, HALF: tl.constexpr) -> Any:
    """Offsets of a state's numbers in a block, from the layer's first key on: the second half is
    with the values, which begin `apart` numbers after the keys."""
    return block + tl.where(number < HALF, number.to(tl.int64), number.to(tl.int64) - HALF + apart)


@part
def _seen(
    lines: tl.tensor,
    states: tl.tensor,
    before: tl.tensor,
    apart: tl.tensor,
    x_stride: tl.tensor,
    token: tl.tensor,
    at: tl.tensor,
    known: tl.tensor,
    began: tl.tensor,
    CHANNELS: tl.constexpr,
    REACH: tl.constexpr,
    MATRIX: tl.constexpr,
    HALF: tl.constexpr,
) -> Any:
    """Channels `at` of tokens that are so many behind the first of a block's: of those before it
    what the state `before` has, or zeros where nothing `began` before."""
    place = lines + token.to(tl.int64) * x_stride + at
    x = tl.load(place, mask=known & (token >= 0), other=0.0).to(tl.float32)
    kept = MATRIX + (token + (REACH - 1)) * CHANNELS + at
    old = states + _place(before, kept, apart, HALF)
    return x + tl.load(old, mask=known & (token < 0) & began, other=0.0)


@part
def _keep_last(
    lines: tl.tensor,
    states: tl.tensor,
    before: tl.tensor,
    into: tl.tensor,
    apart: tl.tensor,
    x_stride: tl.tensor,
    count: tl.tensor,
    at: tl.tensor,
    mine: tl.tensor,
    began: tl.tensor,
    CHANNELS: tl.constexpr,
    REACH: tl.constexpr,
    MATRIX: tl.constexpr,
    HALF: tl.constexpr,
) -> None:
    """Store the last inputs of `count` tokens in the block `into`, from the oldest on: each place
    is read before it is overwritten."""
    for slot in tl.static_range(REACH - 1):
        back = count - (REACH - 1 - slot)
        seen = _seen(
            *(lines, states, before, apart, x_stride, back, at, mine, began),
            *(CHANNELS, REACH, MATRIX, HALF),
        )
        tl.debug_barrier()
        spot = MATRIX + slot * CHANNELS + at
        tl.store(states + _place(into, spot, apart, HALF), seen, mask=mine)
        tl.debug_barrier()


@kernel("table_stride", "x_stride")
def convolve(
    x: tl.tensor,
    taps: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    query_starts: tl.tensor,
    context_lens: tl.tensor,
    tables: tl.tensor,
    rows: tl.tensor,
    states: tl.tensor,
    apart: tl.tensor,
    table_stride: tl.tensor,
    x_stride: tl.tensor,
    CHANNELS: tl.constexpr,
    REACH: tl.constexpr,
    MATRIX: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    SLOTS: tl.constexpr,
    TOKENS: tl.constexpr,
    COLUMNS: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SILU: tl.constexpr,
) -> None:
    """Convolve some channels of one sequence over REACH tokens, add a bias, apply silu, and store
    at the end of each block the inputs that later tokens need."""
    first, start, context, table = _span(
        query_starts, context_lens, tables, rows, table_stride, HAS_ROWS
    )
    step, at = tl.arange(0, TOKENS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mine = at < CHANNELS
    added = tl.zeros([COLUMNS], tl.float32)
    if HAS_BIAS:
        added = tl.load(bias + at, mask=mine, other=0.0)
    for number in range(start // SLOTS, tl.cdiv(context, SLOTS)):
        low = tl.maximum(start, number * SLOTS)
        count = tl.minimum(context, (number + 1) * SLOTS) - low
        lines = x + (first + low - start).to(tl.int64) * x_stride
        made = out + (first + low - start).to(tl.int64) * CHANNELS
        before = tl.load(table + (low - 1) // SLOTS, mask=low > 0, other=0).to(tl.int64) * BLOCK
        into = tl.load(table + number).to(tl.int64) * BLOCK
        for base in range(0, count, TOKENS):
            token = base + step
            known = (token < count)[:, None] & mine[None, :]
            total = tl.zeros([TOKENS, COLUMNS], tl.float32) + added[None, :]
            for tap in tl.static_range(REACH):
                back = (token - (REACH - 1 - tap))[:, None]
                seen = _seen(
                    *(lines, states, before, apart, x_stride, back, at[None, :], known, low > 0),
                    *(CHANNELS, REACH, MATRIX, HALF),
                )
                total += seen * tl.load(taps + at * REACH + tap, mask=mine, other=0.0)[None, :]
            if SILU:
                total = total / (1.0 + tl.exp(-total))
            tl.store(made + token.to(tl.int64)[:, None] * CHANNELS + at[None, :], total, mask=known)
        _keep_last(
            *(lines, states, before, into, apart, x_stride, count, at, mine, low > 0),
            *(CHANNELS, REACH, MATRIX, HALF),
        )


@part
def _unit(x: tl.tensor) -> Any:
    """The vector scaled to a length of about 1."""
    return x * tl.rsqrt(tl.sum(x * x, 0) + _LENGTH_EPS)


@part
def _softplus(x: tl.tensor) -> Any:
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
    SCALE: tl.constexpr,
    LIMIT: tl.constexpr,
    CORRECTS: tl.constexpr,
) -> Any:
    """(the state after a token, what the token reads from it); `step`: before its softplus, and
    at least LIMIT where it does not correct."""
    step, skipped = _softplus(step), v * skip
    if CORRECTS:
        q, k = _unit(q) * SCALE, _unit(k)
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
    there: tl.tensor,
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
    known = (i < KEY) & there
    q = tl.load(line + key_head * KEY + i, mask=known, other=0.0)
    k = tl.load(line + (KEY_HEADS + key_head) * KEY + i, mask=known, other=0.0)
    column = 2 * KEY_HEADS * KEY + head * VALUE + j
    v = tl.load(line + column, mask=(j < VALUE) & there, other=0.0)
    own = rates + token.to(tl.int64) * ((1 + CORRECTS) * HEADS) + head
    first = tl.load(own, mask=there, other=0.0)
    decay = tl.load(own + HEADS, mask=there, other=0.0) if CORRECTS else first
    return q, k, v, LIMIT / (1.0 + tl.exp(-first)), decay


@part
def _tile(
    head: tl.tensor, i: tl.tensor, j: tl.tensor, KEY: tl.constexpr, VALUE: tl.constexpr
) -> Any:
    """(which numbers of a state lines i and columns j of a head are, whether they exist)"""
    numbers = (head * KEY + i)[:, None] * VALUE + j[None, :]
    return numbers, (i < KEY)[:, None] & (j < VALUE)[None, :]


@part
def _of_head(
    log_slopes: tl.tensor,
    shifts: tl.tensor,
    skips: tl.tensor,
    head: tl.tensor,
    CORRECTS: tl.constexpr,
) -> Any:
    """(slope, shift, skip) of a head; one that CORRECTS skips nothing."""
    skip = 0.0 if CORRECTS else tl.load(skips + head)
    return tl.exp(tl.load(log_slopes + head)), tl.load(shifts + head), skip


@part
def _begun(
    states: tl.tensor,
    table: tl.tensor,
    start: tl.tensor,
    numbers: tl.tensor,
    inside: tl.tensor,
    apart: tl.tensor,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    SLOTS: tl.constexpr,
) -> Any:
    """The state behind the token before position `start`, zeros where nothing began before."""
    block = tl.load(table + (start - 1) // SLOTS, mask=start > 0, other=0).to(tl.int64) * BLOCK
    place = states + _place(block, numbers, apart, HALF)
    return tl.load(place, mask=inside & (start > 0), other=0.0)


@kernel("table_stride")
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
    SCALE: tl.constexpr,
    LIMIT: tl.constexpr,
    CORRECTS: tl.constexpr,
    HAS_ROWS: tl.constexpr,
) -> None:
    """Update some columns of one head's state with a sequence's tokens, one after the other. Each
    CORRECTS the state, or adds to it what its step says."""
    tiles: tl.constexpr = (VALUE + COLUMNS - 1) // COLUMNS
    head = tl.program_id(1) // tiles
    i, j = tl.arange(0, KEY_PADDED), tl.program_id(1) % tiles * COLUMNS + tl.arange(0, COLUMNS)
    key_head = head % KEY_HEADS if IN_TURN else head // (HEADS // KEY_HEADS)
    first, start, context, table = _span(
        query_starts, context_lens, tables, rows, table_stride, HAS_ROWS
    )
    slope, shift, skip = _of_head(log_slopes, shifts, skips, head, CORRECTS)
    numbers, inside = _tile(head, i, j, KEY, VALUE)
    state = _begun(states, table, start, numbers, inside, apart, HALF, BLOCK, SLOTS)
    q, k, v, rate, decay = _fetch(
        *(mixed, rates, first, start < context, head, key_head, i, j),
        *(HEADS, KEY_HEADS, KEY, VALUE, CHANNELS, CORRECTS, LIMIT),
    )
    for number in range(start // SLOTS, tl.cdiv(context, SLOTS)):
        low = tl.maximum(start, number * SLOTS)
        for position in range(low, tl.minimum(context, (number + 1) * SLOTS)):
            token = first + position - start
            # The next token's numbers are loaded while this token's are used.
            later_q, later_k, later_v, later_rate, later_decay = _fetch(
                *(mixed, rates, token + 1, position + 1 < context, head, key_head, i, j),
                *(HEADS, KEY_HEADS, KEY, VALUE, CHANNELS, CORRECTS, LIMIT),
            )
            state, read = _take_up(
                state, q, k, v, rate, decay + shift, slope, skip, SCALE, LIMIT, CORRECTS
            )
            tl.store(out + (token.to(tl.int64) * HEADS + head) * VALUE + j, read, mask=j < VALUE)
            q, k, v, rate, decay = later_q, later_k, later_v, later_rate, later_decay
        block = tl.load(table + number).to(tl.int64) * BLOCK
        tl.store(states + _place(block, numbers, apart, HALF), state, mask=inside)
