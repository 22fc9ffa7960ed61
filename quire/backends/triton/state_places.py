"""Device code of states.py: which tokens a sequence has in a pass, and where its states lie."""

from __future__ import annotations

from typing import Any

import triton.language as tl

from quire.backends.triton.jit import part


@part
def span_of(
    sequence: tl.tensor,
    query_starts: tl.tensor,
    context_lens: tl.tensor,
    tables: tl.tensor,
    rows: tl.tensor,
    table_stride: tl.tensor,
    HAS_ROWS: tl.constexpr,
) -> Any:
    """(first token of a sequence in the pass, its position, the length with it, its table)"""
    first = tl.load(query_starts + sequence).to(tl.int32)
    end = tl.load(query_starts + sequence + 1).to(tl.int32)
    context = tl.load(context_lens + sequence).to(tl.int32)
    # An idle row has no context, whatever its input.
    start = tl.where(context > 0, context - (end - first), 0)
    line = tl.load(rows + sequence).to(tl.int64) if HAS_ROWS else sequence.to(tl.int64)
    return first, start, context, tables + line * table_stride


@part
def chunk_of(
    chunk: tl.tensor,
    sequence: tl.tensor,
    start: tl.tensor,
    context: tl.tensor,
    ends: tl.tensor,
    CHUNK: tl.constexpr,
) -> Any:
    """The positions low .. high of a chunk of the pass that belongs to a sequence: chunks begin at
    multiples of CHUNK, `ends` counts those of all sequences up to each."""
    back = tl.load(ends + sequence).to(tl.int32) - chunk
    low = (tl.cdiv(context, CHUNK) - back) * CHUNK
    return tl.maximum(start, low), tl.minimum(context, low + CHUNK)


@part
def place_of(number: tl.tensor, apart: tl.tensor, HALF: tl.constexpr) -> Any:
    """Offsets of a state's numbers from its block's first key on: the second half is with the
    values, which begin `apart` numbers after the keys."""
    return number.to(tl.int64) + tl.where(number < HALF, 0, apart - HALF)


@part
def state_places(
    head: tl.tensor,
    i: tl.tensor,
    j: tl.tensor,
    apart: tl.tensor,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    HALF: tl.constexpr,
) -> Any:
    """Offsets of lines i and columns j of a head's matrix. A line is in one piece where HALF allows
    it, so that neighbouring numbers are read at once."""
    line = (head * KEY + i) * VALUE
    if HALF % VALUE == 0:
        return place_of(line, apart, HALF)[:, None] + j[None, :]
    return place_of(line[:, None] + j[None, :], apart, HALF)


@part
def block_before(
    table: tl.tensor, start: tl.tensor, BLOCK: tl.constexpr, SLOTS: tl.constexpr
) -> Any:
    """Offset of the block with the state behind the token before position `start`, if any."""
    return tl.load(table + (start - 1) // SLOTS, mask=start > 0, other=0).to(tl.int64) * BLOCK


@part
def loaded_state(
    states: tl.tensor,
    table: tl.tensor,
    start: tl.tensor,
    head: tl.tensor,
    i: tl.tensor,
    j: tl.tensor,
    apart: tl.tensor,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    SLOTS: tl.constexpr,
) -> Any:
    """Lines i and columns j of a head's matrix behind the token before position `start`; zeros
    where nothing began before."""
    old = states + block_before(table, start, BLOCK, SLOTS)
    inside = (i < KEY)[:, None] & (j < VALUE)[None, :] & (start > 0)
    places = state_places(head, i, j, apart, KEY, VALUE, HALF)
    return tl.load(old + places, mask=inside, other=0.0)


@part
def keep_state(
    states: tl.tensor,
    table: tl.tensor,
    position: tl.tensor,
    state: tl.tensor,
    head: tl.tensor,
    i: tl.tensor,
    j: tl.tensor,
    apart: tl.tensor,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    SLOTS: tl.constexpr,
) -> None:
    """Store lines i and columns j of a head's matrix in the block of a position."""
    into = states + tl.load(table + position // SLOTS).to(tl.int64) * BLOCK
    inside = (i < KEY)[:, None] & (j < VALUE)[None, :]
    tl.store(into + state_places(head, i, j, apart, KEY, VALUE, HALF), state, mask=inside)
