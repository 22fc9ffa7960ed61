"""The two ends of a decode step of rows that guess: inputs, and checking the guesses.

Like steps.py, with several lines for each place: line p * (1 + count) is the input of the row in
place p that is certain, and the lines after it are guesses, looked up among the row's own tokens.
To the model a line is what a place is elsewhere: it has its position, slot and context. All lines
store keys and values before attention, so a guess sees the guesses before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import triton.language as tl

from quire.backends.triton.jit import kernel, part, power_of_two
from quire.backends.triton.steps import (
    FROZEN,
    LAST_TOKEN,
    MAX_TOKENS,
    MIN_TOKENS,
    NO_ID,
    NUM_OUTPUTS,
    POSITION,
    SAID_RESTS,
    STOP_IDS,
    Fed,
    why_not,
)
from quire.steps.row_schema import DROPPED

if TYPE_CHECKING:
    from torch import Tensor

SAID_DROPPED = tl.constexpr(DROPPED)
NOTHING_THERE = tl.constexpr(-2)  # differs from all tokens and from the value before the first
TOKENS_AT_ONCE = 2048  # tokens that a program compares


@dataclass(frozen=True, slots=True)
class History:
    """The tokens in which rows look for guesses, place by place: tokens int32 [places, room], of
    which the first lengths[p] (int32) are valid; 0: the row does not guess."""

    tokens: Tensor
    lengths: Tensor


@dataclass(frozen=True, slots=True)
class LookUp:
    """`count` guesses; at least `shortest` tokens agree, at most `longest` are compared."""

    count: int
    shortest: int
    longest: int


def feed_guesses(
    ints: Tensor,
    places: Tensor,
    tables: Tensor,
    history: History,
    look_up: LookUp,
    fed: Fed,
    line_rows: Tensor,
    *,
    block_size: int,
) -> None:
    """Fill the lines of `fed`, and line_rows (int32) with the row of each line, also if it is
    idle."""
    strides = (ints.stride(0), tables.stride(0), tables.stride(1), fed.slots.stride(0))
    _feed_guesses[(places.shape[0],)](
        *(ints, places, tables, history.tokens, history.lengths),
        *(fed.token_ids, fed.positions, fed.slots, fed.context_lens, fed.rows, fed.next_at),
        *(line_rows, *strides, history.tokens.stride(0), tables.shape[0]),
        SLOTS=block_size,
        LINES=1 + look_up.count,
        WIDTH=power_of_two(1 + look_up.count),
        SHORTEST=max(look_up.shortest, 1),
        LONGEST=look_up.longest,
        TOKENS=TOKENS_AT_ONCE,
        num_warps=8,
    )


def accept_guesses(
    ints: Tensor,
    places: Tensor,
    history: History,
    token_ids: Tensor,
    fed_rows: Tensor,
    tokens: Tensor,
    failed: Tensor,
    made: Tensor,
    step: Tensor,
) -> None:
    """As steps.accept, line by line: one counts if what the one before it drew is what it was fed
    (token_ids int64, fed_rows int32 [lines], as `feed_guesses` filled them). `made` [steps, lines]
    int32 says -3 of a line that was fed and does not count. What counts is added to the row's
    history."""
    lines = made.shape[1] // places.shape[0]
    _accept_guesses[(1,)](
        *(ints, places, history.tokens, history.lengths, token_ids, fed_rows),
        *(tokens, failed, made, step),
        *(ints.stride(0), history.tokens.stride(0), made.stride(0), places.shape[0]),
        COLUMNS=ints.shape[0],
        LINES=lines,
        WIDTH=power_of_two(places.shape[0]),
        num_warps=1,
    )


@part
def _look_up(
    tokens: tl.tensor,
    last: tl.tensor,
    SHORTEST: tl.constexpr,
    LONGEST: tl.constexpr,
    TOKENS: tl.constexpr,
) -> tl.tensor:
    """Where those up to number `last` stood before, as far as they agree: how many do, times 2^32,
    and the number of the last one there. Most agree, and of several such it is the latest; -1 for
    none."""
    best = tl.full([TOKENS], -1, tl.int64)
    for first in range(0, last, TOKENS):
        at = first + tl.arange(0, TOKENS)
        same = at < last
        agreed = tl.zeros([TOKENS], tl.int64)
        for back in tl.static_range(LONGEST):
            wanted = tl.load(tokens + last - back, mask=last >= back, other=NOTHING_THERE)
            there = tl.load(tokens + at - back, mask=same & (at >= back), other=NO_ID)
            same &= there == wanted
            agreed += same.to(tl.int64)
        best = tl.maximum(best, tl.where(agreed >= SHORTEST, (agreed << 32) + at, -1))
    return tl.max(best, 0)


@kernel("stride", "group_stride", "table_stride", "slots_stride", "room", "groups")
def _feed_guesses(
    ints: tl.tensor,
    places: tl.tensor,
    tables: tl.tensor,
    history: tl.tensor,
    lengths: tl.tensor,
    token_ids: tl.tensor,
    positions: tl.tensor,
    slots: tl.tensor,
    context_lens: tl.tensor,
    rows: tl.tensor,
    next_at: tl.tensor,
    line_rows: tl.tensor,
    stride: tl.tensor,
    group_stride: tl.tensor,
    table_stride: tl.tensor,
    slots_stride: tl.tensor,
    room: tl.tensor,
    groups: tl.tensor,
    SLOTS: tl.constexpr,
    LINES: tl.constexpr,
    WIDTH: tl.constexpr,
    SHORTEST: tl.constexpr,
    LONGEST: tl.constexpr,
    TOKENS: tl.constexpr,
) -> None:
    """One place: find where its last tokens occurred before, and lay out its lines."""
    place = tl.program_id(0)
    row = tl.load(places + place).to(tl.int64)
    own = ints + row
    live = tl.load(own + FROZEN * stride) == 0
    length = tl.load(lengths + place)
    mine = history + place.to(tl.int64) * room
    found = _look_up(mine, tl.where(live, length - 1, 0), SHORTEST, LONGEST, TOKENS)
    begin = (found & 0xFFFFFFFF).to(tl.int32) + 1
    line = tl.arange(0, WIDTH)
    # Guesses past the last token start again at the match: a text that was repeated at once is
    # likely to be repeated again.
    again = tl.where(found >= 0, begin + (line - 1) % tl.maximum(length - begin, 1), 0)
    guess = tl.load(mine + again, mask=(found >= 0) & (line > 0), other=0)
    token = tl.where(line == 0, tl.load(own + LAST_TOKEN * stride), guess.to(tl.int64))
    position = tl.load(own + POSITION * stride) + line
    left = tl.load(own + MAX_TOKENS * stride) - tl.load(own + NUM_OUTPUTS * stride)
    fed = live & ((line == 0) | ((found >= 0) & (line < left)))
    at = place * LINES + line
    inside = line < LINES
    for group in range(groups):
        table = tables + group * group_stride + row * table_stride
        block = tl.load(table + position // SLOTS, mask=fed & inside, other=0)
        slot = block.to(tl.int64) * SLOTS + position % SLOTS
        tl.store(slots + group * slots_stride + at, tl.where(fed, slot, -1), mask=inside)
    tl.store(token_ids + at, token, mask=inside)
    tl.store(positions + at, tl.where(fed, position, 0), mask=inside)  # all within the tables
    tl.store(context_lens + at, tl.where(fed, position + 1, 0).to(tl.int32), mask=inside)
    tl.store(rows + at, tl.where(fed, row, -1).to(tl.int32), mask=inside)
    tl.store(line_rows + at, tl.zeros([WIDTH], tl.int32) + row.to(tl.int32), mask=inside)
    tl.store(next_at + at, (position + 1).to(tl.int32), mask=inside)


@kernel("stride", "room", "made_stride", "count")
def _accept_guesses(
    ints: tl.tensor,
    places: tl.tensor,
    history: tl.tensor,
    lengths: tl.tensor,
    token_ids: tl.tensor,
    fed_rows: tl.tensor,
    tokens: tl.tensor,
    failed: tl.tensor,
    made: tl.tensor,
    step: tl.tensor,
    stride: tl.tensor,
    room: tl.tensor,
    made_stride: tl.tensor,
    count: tl.tensor,
    COLUMNS: tl.constexpr,
    LINES: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """All places, line after line: one program, as in steps.py."""
    now = tl.load(step)
    place = tl.arange(0, WIDTH)
    inside = place < count
    row = tl.load(places + place, mask=inside, other=0).to(tl.int64)
    own = ints + row
    live = inside & (tl.load(own + FROZEN * stride, mask=inside, other=1) == 0)
    written = tl.load(own + NUM_OUTPUTS * stride, mask=live, other=0)
    position = tl.load(own + POSITION * stride, mask=live, other=0)
    length = tl.load(lengths + place, mask=live, other=0)
    end = history + place.to(tl.int64) * room + length
    last, kept = tl.zeros([WIDTH], tl.int64), tl.zeros([WIDTH], tl.int32)
    ended, counts = place < 0, live
    for line in tl.static_range(LINES):
        at = place * LINES + line
        fed = inside & (tl.load(fed_rows + at, mask=inside, other=-1) >= 0)
        if line > 0:
            counts &= fed & (tl.load(token_ids + at, mask=inside, other=0) == last)
        token = tl.load(tokens + at, mask=inside, other=0)
        fails = tl.load(failed + at, mask=inside, other=0).to(tl.int32)
        bad = fails != 0
        stops = token == NO_ID
        for column in tl.static_range(STOP_IDS, COLUMNS):
            stops |= tl.load(own + column * stride, mask=counts, other=NO_ID) == token
        more = written + line + 1
        stops &= more >= tl.load(own + MIN_TOKENS * stride, mask=counts, other=0)
        over = stops | bad | (more >= tl.load(own + MAX_TOKENS * stride, mask=counts, other=0))
        said = tl.where(counts, tl.where(bad, why_not(fails), token), SAID_DROPPED)
        told = tl.where(fed, said, SAID_RESTS).to(tl.int32)
        tl.store(made + now * made_stride + at, told, mask=inside)
        tl.store(end + line, token.to(tl.int32), mask=counts & (length > 0))
        last = tl.where(counts, token, last)
        kept += counts.to(tl.int32)
        ended |= counts & over
        counts &= ~over
    tl.debug_barrier()
    tl.store(own + LAST_TOKEN * stride, last, mask=live)
    tl.store(own + POSITION * stride, position + kept, mask=live)
    tl.store(own + NUM_OUTPUTS * stride, written + kept, mask=live)
    tl.store(own + FROZEN * stride, ended.to(tl.int64), mask=live)
    tl.store(lengths + place, length + kept, mask=live & (length > 0))
    tl.store(step, now + 1)
