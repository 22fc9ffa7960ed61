"""Device code for grammars that the device follows by itself.

A state is a line of `follows` [states, 256]: the state after each byte, -1 where the byte is not
allowed. The bytes of token t are texts[offsets[t] .. offsets[t + 1]]; end tokens, and ids without
text, have none. `about` has for each state: 1 if nothing can follow, 1 if a text may end there, and
the only token that may be drawn, -1 if the bytes decide.
"""

from __future__ import annotations

from typing import Any

import triton.language as tl

from quire.backends.triton.jit import kernel, part
from quire.steps.row_schema import Column

FROZEN = tl.constexpr(int(Column.FROZEN))


@part
def _walked(
    state: tl.tensor, at: tl.tensor, last: tl.tensor, texts: tl.tensor, follows: tl.tensor
) -> Any:
    """The state after the bytes texts[at .. last], -1 if they are not allowed."""
    for _ in range(tl.max(last - at, 0)):
        going = (at < last) & (state >= 0)
        byte = tl.load(texts + at, mask=going, other=0).to(tl.int32)
        after = tl.load(follows + state.to(tl.int64) * 256 + byte, mask=going, other=-1)
        state = tl.where(going, after, state)
        at += 1
    return state


@kernel("first_line", "first", "state_stride", "mask_stride")
def make_lines(
    follows: tl.tensor,
    about: tl.tensor,
    offsets: tl.tensor,
    texts: tl.tensor,
    end_bits: tl.tensor,
    masks: tl.tensor,
    first_line: tl.tensor,
    first: tl.tensor,
    state_stride: tl.tensor,
    mask_stride: tl.tensor,
    vocab: tl.tensor,
    TOKENS: tl.constexpr,
) -> None:
    """Write the bits of some tokens in a state's line of `masks`: whether each may be drawn."""
    state, tile = first + tl.program_id(0), tl.program_id(1)
    token = tile * TOKENS + tl.arange(0, TOKENS)
    inside = token < vocab
    only = tl.load(about + 2 * state_stride + state)
    at = tl.load(offsets + token, mask=inside & (only < 0), other=0)
    last = tl.load(offsets + token + 1, mask=inside & (only < 0), other=0)
    behind = _walked(tl.full([TOKENS], 0, tl.int32) + state, at, last, texts, follows)
    allowed = tl.where(only < 0, (at < last) & (behind >= 0), token == only)
    bits = tl.reshape(allowed.to(tl.int32) << (token % 32), [TOKENS // 32, 32])
    word = tile * (TOKENS // 32) + tl.arange(0, TOKENS // 32)
    real = word < (vocab + 31) // 32
    ends = (tl.load(about + state_stride + state) != 0) & (only < 0)
    end = tl.load(end_bits + word, mask=real & ends, other=0)
    line = masks + (first_line + state).to(tl.int64) * mask_stride
    tl.store(line + word, tl.sum(bits, 1) | end, mask=real)


@kernel("first_line", "column_stride", "stride", "count")
def walk(
    places: tl.tensor,
    rows: tl.tensor,
    tokens: tl.tensor,
    failed: tl.tensor,
    columns: tl.tensor,
    ints: tl.tensor,
    follows: tl.tensor,
    about: tl.tensor,
    offsets: tl.tensor,
    texts: tl.tensor,
    first_line: tl.tensor,
    column_stride: tl.tensor,
    stride: tl.tensor,
    count: tl.tensor,
    WIDTH: tl.constexpr,
) -> None:
    """Take rows to the states after their tokens: the mask that they use next. Rows freeze if
    nothing can follow."""
    at = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    place = tl.load(places + at, mask=at < count, other=-1)
    row = tl.load(rows + place, mask=place >= 0, other=-1).to(tl.int64)
    lines = columns + 8 * column_stride  # see edit_kernels.py
    line = tl.load(lines + row, mask=row >= 0, other=-1)
    fails = tl.load(failed + place, mask=row >= 0, other=1) != 0
    walks = (row >= 0) & (line >= first_line) & (fails == 0)
    token = tl.load(tokens + place, mask=walks, other=0)
    begin = tl.load(offsets + token, mask=walks, other=0)
    last = tl.load(offsets + token + 1, mask=walks, other=0)
    state = _walked(line - first_line, begin, last, texts, follows)
    lives = walks & (begin < last) & (state >= 0)
    over = tl.load(about + state, mask=lives, other=1) != 0
    tl.store(lines + row, first_line + state, mask=lives)
    tl.store(ints + FROZEN * stride + row, 1, mask=walks & over)
