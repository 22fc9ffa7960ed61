"""Device code of states.py: the convolution in front of a state."""

from __future__ import annotations

from typing import Any

import triton.language as tl

from quire.backends.triton.jit import kernel, part
from quire.backends.triton.state_places import block_before, chunk_of, place_of, span_of


@part
def _input_place(
    number: tl.tensor, apart: tl.tensor, MATRIX: tl.constexpr, HALF: tl.constexpr
) -> Any:
    """Offsets of kept inputs of the convolution, which lie behind the matrices."""
    if MATRIX >= HALF:
        return number.to(tl.int64) + (apart - HALF)
    return place_of(number, apart, HALF)


@part
def _inputs(
    lines: tl.tensor, x_stride: tl.tensor, token: tl.tensor, at: tl.tensor, known: tl.tensor
) -> Any:
    """Channels `at` of tokens of a sequence, 0 being its first of this pass; 0 for those before."""
    place = lines + token.to(tl.int64) * x_stride + at
    return tl.load(place, mask=known & (token >= 0), other=0.0).to(tl.float32)


@part
def _kept_inputs(
    old: tl.tensor,
    apart: tl.tensor,
    token: tl.tensor,
    at: tl.tensor,
    known: tl.tensor,
    CHANNELS: tl.constexpr,
    REACH: tl.constexpr,
    MATRIX: tl.constexpr,
    HALF: tl.constexpr,
) -> Any:
    """Channels `at` of tokens before the first of this pass, which the `old` state has; 0 for
    others."""
    kept = MATRIX + (token + (REACH - 1)) * CHANNELS + at
    place = old + _input_place(kept, apart, MATRIX, HALF)
    return tl.load(place, mask=known & (token < 0), other=0.0)


@part
def _with_taps(
    total: tl.tensor,
    lines: tl.tensor,
    old: tl.tensor,
    taps: tl.tensor,
    apart: tl.tensor,
    x_stride: tl.tensor,
    token: tl.tensor,
    at: tl.tensor,
    known: tl.tensor,
    reaches: tl.tensor,
    CHANNELS: tl.constexpr,
    REACH: tl.constexpr,
    MATRIX: tl.constexpr,
    HALF: tl.constexpr,
) -> Any:
    """`total` and the taps times the inputs that each token reaches; if one of them `reaches`
    inputs before this pass, these are read, too. The oldest come first, so that sums do not depend
    on where a slice begins."""
    at, token = at[None, :], token[:, None]
    if reaches:
        for tap in tl.static_range(REACH - 1):
            back = token - (REACH - 1 - tap)
            by = tl.load(taps + at * REACH + tap, mask=at < CHANNELS, other=0.0)
            total += by * _kept_inputs(
                *(old, apart, back, at, known, CHANNELS, REACH, MATRIX, HALF)
            )
    for tap in tl.static_range(REACH):
        back = token - (REACH - 1 - tap)
        by = tl.load(taps + at * REACH + tap, mask=at < CHANNELS, other=0.0)
        total += by * _inputs(lines, x_stride, back, at, known)
    return total


@part
def _keep_last(
    lines: tl.tensor,
    old: tl.tensor,
    into: tl.tensor,
    apart: tl.tensor,
    x_stride: tl.tensor,
    end: tl.tensor,
    at: tl.tensor,
    mine: tl.tensor,
    began: tl.tensor,
    CHANNELS: tl.constexpr,
    REACH: tl.constexpr,
    MATRIX: tl.constexpr,
    HALF: tl.constexpr,
) -> None:
    """Store the last inputs before token `end` in the block `into`, from the oldest on: each place
    is read before it is overwritten."""
    for slot in tl.static_range(REACH - 1):
        back = end - (REACH - 1 - slot)
        seen = _inputs(lines, x_stride, back, at, mine)
        seen += _kept_inputs(*(old, apart, back, at, mine & began, CHANNELS, REACH, MATRIX, HALF))
        tl.debug_barrier()
        spot = MATRIX + slot * CHANNELS + at
        tl.store(into + _input_place(spot, apart, MATRIX, HALF), seen, mask=mine)
        tl.debug_barrier()


@kernel("table_stride", "x_stride", "sequences")
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
    owners: tl.tensor,
    ends: tl.tensor,
    sequences: tl.tensor,
    CHANNELS: tl.constexpr,
    REACH: tl.constexpr,
    MATRIX: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    SLOTS: tl.constexpr,
    CHUNK: tl.constexpr,
    TOKENS: tl.constexpr,
    COLUMNS: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SILU: tl.constexpr,
) -> None:
    """Convolve some channels of one chunk over REACH tokens, add a bias, apply silu. With CHUNK 0 a
    program has the only token of a sequence, and keeps the inputs that later tokens need."""
    at = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mine = at < CHANNELS
    sequence = tl.load(owners + tl.program_id(0)) if CHUNK else tl.program_id(0)
    if sequence < sequences:
        given = (query_starts, context_lens, tables, rows, table_stride)
        first, start, context, table = span_of(sequence, *given, HAS_ROWS)
        low, high = start, context
        if CHUNK:
            low, high = chunk_of(tl.program_id(0), sequence, start, context, ends, CHUNK)
        lines = x + first.to(tl.int64) * x_stride
        made = out + first.to(tl.int64) * CHANNELS
        old = states + block_before(table, start, BLOCK, SLOTS)
        added = tl.load(bias + at, mask=mine & HAS_BIAS, other=0.0)
        for base in range(low - start, high - start, TOKENS):
            token = base + tl.arange(0, TOKENS)
            known = (token < high - start)[:, None] & mine[None, :]
            total = tl.zeros([TOKENS, COLUMNS], tl.float32) + added[None, :]
            reaches = (start > 0) & (base < REACH - 1)
            total = _with_taps(
                *(total, lines, old, taps, apart, x_stride, token, at, known, reaches),
                *(CHANNELS, REACH, MATRIX, HALF),
            )
            if SILU:
                total = total / (1.0 + tl.exp(-total))
            tl.store(made + token.to(tl.int64)[:, None] * CHANNELS + at[None, :], total, mask=known)
        if CHUNK == 0:
            into = states + tl.load(table + start // SLOTS).to(tl.int64) * BLOCK
            _keep_last(
                *(lines, old, into, apart, x_stride, context - start, at, mine & (context > 0)),
                *(start > 0, CHANNELS, REACH, MATRIX, HALF),
            )


@kernel("table_stride", "x_stride")
def keep_inputs(
    x: tl.tensor,
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
    COLUMNS: tl.constexpr,
    HAS_ROWS: tl.constexpr,
) -> None:
    """Store some channels of the last inputs in each block that a sequence has reached. The first
    block comes last, since it may be the one whose old inputs the others need."""
    at = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    first, start, context, table = span_of(
        *(tl.program_id(0), query_starts, context_lens, tables, rows, table_stride, HAS_ROWS)
    )
    lines = x + first.to(tl.int64) * x_stride
    old = states + block_before(table, start, BLOCK, SLOTS)
    last = tl.cdiv(context, SLOTS) - 1
    for back in range(last + 1 - start // SLOTS):
        into = states + tl.load(table + last - back).to(tl.int64) * BLOCK
        end = tl.minimum(context, (last + 1 - back) * SLOTS) - start
        _keep_last(
            *(lines, old, into, apart, x_stride, end, at, at < CHANNELS, start > 0),
            *(CHANNELS, REACH, MATRIX, HALF),
        )
