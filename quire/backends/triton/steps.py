"""The two ends of a decode step: the inputs of rows, and the tokens that they drew.

Rows are columns of a matrix [columns, row stride] of 64-bit integers, whose lines
steps/row_schema.py numbers; `places` has the row of each place of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import triton.language as tl

from quire.backends.triton.jit import kernel, part
from quire.steps.row_schema import EMPTIED, FAILED, LEFT_NONE, NOWHERE, RESTS, Column

if TYPE_CHECKING:
    from torch import Tensor

LAST_TOKEN, POSITION, NUM_OUTPUTS, FROZEN, MIN_TOKENS, MAX_TOKENS, STOP_IDS = (
    tl.constexpr(int(column)) for column in Column
)
NO_ID, SAID_FAILED, SAID_RESTS = (tl.constexpr(one) for one in (NOWHERE, FAILED, RESTS))
SAID_LEFT_NONE, BY_EDITS = tl.constexpr(LEFT_NONE), tl.constexpr(EMPTIED)
PLACES_AT_ONCE = 256  # places of a program


@dataclass(frozen=True, slots=True)
class Fed:
    """The inputs of a step, place by place. All are [places] except slots; an idle place has
    context 0, slot -1 and row -1."""

    token_ids: Tensor  # int64
    positions: Tensor  # int64
    slots: Tensor  # int64 [groups, places], for each group of layers
    context_lens: Tensor  # int32, with the input token
    rows: Tensor  # int32
    next_at: Tensor  # int32: position of the drawn token


def feed(ints: Tensor, places: Tensor, tables: Tensor, fed: Fed, *, block_size: int) -> None:
    """Fill `fed` from the columns `ints` of the rows in `places` [places] int32.

    tables [groups, rows, width] int32: the blocks of each row in each group of layers.
    """
    count = places.shape[0]
    strides = (ints.stride(0), tables.stride(0), tables.stride(1), fed.slots.stride(0))
    _feed[(-(-count // PLACES_AT_ONCE), tables.shape[0])](
        *(ints, places, tables, fed.token_ids, fed.positions, fed.slots),
        *(fed.context_lens, fed.rows, fed.next_at, *strides, count),
        SLOTS=block_size,
        WIDTH=PLACES_AT_ONCE,
        num_warps=4,
    )


def accept(
    ints: Tensor, places: Tensor, tokens: Tensor, failed: Tensor, made: Tensor, step: Tensor
) -> None:
    """Each live row drew tokens[i] (int64 [places]); line step[0] of `made` gets what came of
    it, and step[0] becomes the next.

    made [steps, places] int32: the token, -2 where `failed`, -4 where its edits left none, -1 for
    a row that rests. A row freezes at a stop id once min tokens outputs exist, at max tokens, and
    when it failed.
    """
    # One program: the last thing it does is to count the step that the others would read.
    _accept[(1,)](
        *(ints, places, tokens, failed, made, step),
        *(ints.stride(0), made.stride(0), places.shape[0]),
        COLUMNS=ints.shape[0],
        WIDTH=PLACES_AT_ONCE,
        num_warps=4,
    )


@kernel("stride", "group_stride", "table_stride", "slots_stride", "count")
def _feed(
    ints: tl.tensor,
    places: tl.tensor,
    tables: tl.tensor,
    token_ids: tl.tensor,
    positions: tl.tensor,
    slots: tl.tensor,
    context_lens: tl.tensor,
    rows: tl.tensor,
    next_at: tl.tensor,
    stride: tl.tensor,
    group_stride: tl.tensor,
    table_stride: tl.tensor,
    slots_stride: tl.tensor,
    count: tl.tensor,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """Some places, for one group of layers; the first group also writes what all groups share."""
    group = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    inside = at < count
    row = tl.load(places + at, mask=inside, other=0).to(tl.int64)
    own = ints + row
    token = tl.load(own + LAST_TOKEN * stride, mask=inside, other=0)
    position = tl.load(own + POSITION * stride, mask=inside, other=0)
    frozen = tl.load(own + FROZEN * stride, mask=inside, other=1)
    live = inside & (frozen == 0)
    table = tables + group * group_stride + row * table_stride
    block = tl.load(table + position // SLOTS, mask=live, other=0)
    slot = block.to(tl.int64) * SLOTS + position % SLOTS
    tl.store(slots + group * slots_stride + at, tl.where(live, slot, -1), mask=inside)
    first = inside & (group == 0)
    tl.store(token_ids + at, token, mask=first)
    tl.store(positions + at, position, mask=first)
    tl.store(context_lens + at, tl.where(live, position + 1, 0).to(tl.int32), mask=first)
    tl.store(rows + at, tl.where(live, row, -1).to(tl.int32), mask=first)
    tl.store(next_at + at, (position + 1).to(tl.int32), mask=first)


@part
def why_not(fails: tl.tensor) -> Any:
    """What results say of lines that failed."""
    return tl.where(fails == BY_EDITS, SAID_LEFT_NONE, SAID_FAILED)


@kernel("stride", "made_stride", "count")
def _accept(
    ints: tl.tensor,
    places: tl.tensor,
    tokens: tl.tensor,
    failed: tl.tensor,
    made: tl.tensor,
    step: tl.tensor,
    stride: tl.tensor,
    made_stride: tl.tensor,
    count: tl.tensor,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    now = tl.load(step)
    for first in range(0, count, WIDTH):
        at = first + tl.arange(0, WIDTH)
        inside = at < count
        row = tl.load(places + at, mask=inside, other=0).to(tl.int64)
        own = ints + row
        live = inside & (tl.load(own + FROZEN * stride, mask=inside, other=1) == 0)
        token = tl.load(tokens + at, mask=inside, other=0)
        fails = tl.load(failed + at, mask=inside, other=0).to(tl.int32)
        bad = fails != 0
        written = tl.load(own + NUM_OUTPUTS * stride, mask=live, other=0) + 1
        stops = token == NO_ID
        for column in tl.static_range(STOP_IDS, COLUMNS):
            stops |= tl.load(own + column * stride, mask=live, other=NO_ID) == token
        stops &= written >= tl.load(own + MIN_TOKENS * stride, mask=live, other=0)
        full = written >= tl.load(own + MAX_TOKENS * stride, mask=live, other=0)
        tl.store(own + LAST_TOKEN * stride, token, mask=live)
        position = tl.load(own + POSITION * stride, mask=live, other=0)
        tl.store(own + POSITION * stride, position + 1, mask=live)
        tl.store(own + NUM_OUTPUTS * stride, written, mask=live)
        tl.store(own + FROZEN * stride, (stops | full | bad).to(tl.int64), mask=live)
        said = tl.where(bad, why_not(fails), token)
        told = tl.where(live, said, SAID_RESTS).to(tl.int32)
        tl.store(made + now * made_stride + at, told, mask=inside)
    tl.debug_barrier()
    tl.store(step, now + 1)
