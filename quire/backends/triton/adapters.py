"""LoRA adapters on the device: A and B of all slots stacked, lines sorted by slot.

Lines with the same slot are cut into tiles. One launch multiplies every tile with its slot's A;
another multiplies the result with its B and adds it to the product, or also computes the product.
Neither depends on which slots are in use, and the number of programs depends only on the numbers of
lines and slots, so a captured pass serves any lines. Sums are added in the same order in any batch.
Numbers that an adapter has in place of the base's are computed by torch (own_places.py).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.backends.adapter_ops import (
    AdaptedPairs,
    AdaptedProduct,
    AdapterLines,
    AdapterRoom,
    Added,
    ExpertSlots,
    OwnNumbers,
)
from quire.backends.linear import Gate, LinearOp
from quire.backends.ops import ExpertsOp, RowOp
from quire.backends.own_places import OwnOffsets, OwnPlaces, where
from quire.backends.plain import PlainLinear
from quire.backends.triton.adapted_experts import StackedExperts
from quire.backends.triton.adapted_pairs import PlacedPairs
from quire.backends.triton.adapter_lines import TiledLines
from quire.backends.triton.adapter_stacks import Expands, Stacks, stacked_rank
from quire.backends.triton.experts import FusedExperts
from quire.request import Ints

# A of all slots is stored after a weight if it has at most so many lines per line of the weight,
# and is used in one product with it in passes of at most so many lines.
MOST_BEHIND, MOST_LINES_BEHIND = 0.5, 512


class StackedAdapters:
    """Makes slots for products, on the device."""

    def __init__(self, room: AdapterRoom) -> None:
        self.room = room

    def product(
        self,
        rows: tuple[int, ...],
        columns: int,
        bias: Tensor | None,
        *,
        seldom: bool,
        base: LinearOp | None = None,
    ) -> AdaptedProduct:
        plain, room = base if isinstance(base, PlainLinear) else None, self.room
        if plain is not None:  # a router's is of float32 beside others
            room = replace(room, dtype=plain.weight.dtype)
        made = StackedProduct(room, rows, columns, bias)
        if not seldom:
            if plain is not None and made.fits_behind(plain):
                made.stand_behind(plain)
            made.make_room()
        return made

    def embedding(self, num_rows: int, width: int) -> AdaptedProduct:
        return StackedRows(self.room, num_rows, width)

    def norm(self, with_weight: Callable[[Tensor], RowOp], weight: Tensor) -> AdaptedProduct:
        return StackedNorm(self.room, with_weight, weight)

    def pairs(self, heads: int, plain: int, value: int) -> AdaptedPairs:
        return PlacedPairs(self.room.device, (heads, plain, value))

    def experts(self, base: ExpertsOp, up_rows: tuple[int, ...], hidden: int) -> ExpertSlots | None:
        if not isinstance(base, FusedExperts):
            return None
        return StackedExperts(self.room, base, up_rows, hidden)

    def lines(self, slots: Ints) -> AdapterLines | None:
        if not (slots >= 0).any():
            return None
        return TiledLines.of(slots, self.room.num_slots, self.room.device)


class StackedProduct(AdaptedProduct):
    """The slots of one product. If all are empty, nothing is launched."""

    def __init__(
        self, room: AdapterRoom, rows: tuple[int, ...], columns: int, bias: Tensor | None
    ) -> None:
        self._room, self._given, self._bias = room, (rows, columns, bias), bias
        self._wide: Tensor | None = None  # the weight, with A after it
        self._stacks: Stacks | None = None
        self._filled: set[int] = set()
        self._own = OwnPlaces(room.device)
        self._offsets = OwnOffsets(room.num_slots, sum(rows), room.device)

    def _num_behind(self) -> int:
        return self._room.num_slots * len(self._given[0]) * stacked_rank(self._room.max_rank)

    def fits_behind(self, base: PlainLinear) -> bool:
        """Whether one product with the weight and all A (of which a line uses one) is worth it."""
        alike = base.weight.dtype == self._room.dtype
        return alike and self._num_behind() <= MOST_BEHIND * sum(self._given[0])

    def stand_behind(self, base: PlainLinear) -> None:
        """Store A of all slots after the weight, which is copied to the same memory, so that one
        product computes both."""
        rows, columns, _ = self._given
        outer = sum(rows)
        self._wide = base.weight.new_zeros(outer + self._num_behind(), columns)
        self._wide[:outer] = base.weight
        base.weight = self._wide[:outer]

    @property
    def variant(self) -> Hashable:
        low_rank = 0
        if self._stacks is not None and self._filled:
            low_rank = 1 if self._stacks.expands.less is None else 2
        own = self._own.variant, self._offsets.variant
        return (low_rank, *own) if any(own) else low_rank

    def make_room(self) -> Stacks:
        """Allocate memory for all slots, if there is none yet."""
        if self._stacks is None:
            behind = None if self._wide is None else self._wide[sum(self._given[0]) :]
            self._stacks = Stacks(self._room, *self._given, behind)
        return self._stacks

    def load(self, slot: int, added: Sequence[Added]) -> None:
        if added or slot in self._filled:
            self.make_room().load(slot, [added])
        (self._filled.add if added else self._filled.discard)(slot)
        self._own.free(slot)
        self._offsets.load(slot, None)

    def load_own(self, slot: int, own: OwnNumbers) -> None:
        self._offsets.load(slot, own.offset)
        if own.rows is None or own.weight is None:
            return
        rows, numbers = own.rows.to(self._room.device), [own.weight.to(self._room.dtype)]
        if self._bias is not None:
            numbers.append(self._bias.index_select(0, rows))
        is_whole = torch.equal(own.rows, torch.arange(sum(self._given[0])))
        self._own.load(slot, numbers if is_whole else [*numbers, rows])

    def add(self, x: Tensor, y: Tensor, lines: AdapterLines) -> Tensor:
        of = cast(TiledLines, lines)
        for mine, (weight, *more) in self._own.used(of.by_line):
            bias = None if self._bias is None else more[0]
            made = F.linear(x, weight, bias)
            rows = more[-1] if len(more) > (bias is not None) else None
            if rows is None:
                y = where(mine, made, y)
            else:
                y.index_copy_(1, rows, where(mine, made, y.index_select(1, rows)))
        if self._filled:
            y = self.make_room().add(x, y, of)
        return self._offsets.add(y, of.by_line)

    def multiply(self, base: LinearOp, x: Tensor, lines: AdapterLines) -> Tensor:
        return self._multiply(base, x, lines, None)

    def multiply_gated(self, base: LinearOp, gate: Gate, x: Tensor, lines: AdapterLines) -> Tensor:
        return self._multiply(base, x, lines, gate)

    def _multiply(
        self, base: LinearOp, x: Tensor, lines: AdapterLines, gate: Gate | None
    ) -> Tensor:
        if not self._filled or self._own.variant or self._offsets.variant:
            made = self.add(x, base(x), lines)
            return made if gate is None else gate.opened(made)
        stacks, of = self.make_room(), cast(TiledLines, lines)
        if self._wide is not None and len(x) <= MOST_LINES_BEHIND:
            return stacks.expands.add(F.linear(x, self._wide), None, of, gate)
        return stacks.add(x, base(x), of, gate)

    def release(self) -> None:
        if self._wide is not None and self._stacks is not None:
            self._stacks.a.zero_()  # its memory belongs to the weight's
        self._stacks = None
        self._filled.clear()
        self._own.release()
        self._offsets.release()

    def tensors(self) -> tuple[Tensor, ...]:
        stacks = () if self._stacks is None else self._stacks.tensors()
        return (*stacks, *self._own.tensors(), *self._offsets.tensors())


class StackedRows(AdaptedProduct):
    """The slots of an embedding: tables [slots, V, rank], looked up, then B as for a product."""

    def __init__(self, room: AdapterRoom, num_rows: int, width: int) -> None:
        self._room, self._sizes = room, (num_rows, width)
        self._stacks: tuple[Tensor, Expands] | None = None  # allocated with the first adapter
        self._filled: set[int] = set()
        self._own = OwnPlaces(room.device)

    @property
    def variant(self) -> Hashable:
        low_rank = int(bool(self._filled))
        return (low_rank, self._own.variant) if self._own.variant else low_rank

    def load(self, slot: int, added: Sequence[Added]) -> None:
        self._own.free(slot)
        if self._stacks is None and added:
            num_rows, width = self._sizes
            shape = (self._room.num_slots, num_rows, stacked_rank(self._room.max_rank))
            table = torch.zeros(shape, dtype=self._room.dtype, device=self._room.device)
            self._stacks = table, Expands(self._room, (width,), None)
        if self._stacks is None:
            return
        table, expands = self._stacks
        table[slot].zero_()
        expands.load(slot, [added])
        for one in added:
            table[slot, :, : len(one.a)].copy_(one.a.t())
        (self._filled.add if added else self._filled.discard)(slot)

    def load_own(self, slot: int, own: OwnNumbers) -> None:
        if own.rows is None or own.weight is None or own.offset is not None:
            raise LookupError("an embedding has rows alone. This is a bug.")
        places = torch.full((self._sizes[0],), -1)
        places[own.rows] = torch.arange(len(own.rows))
        self._own.load(slot, (places, own.weight))

    def add(self, x: Tensor, y: Tensor, lines: AdapterLines) -> Tensor:
        of = cast(TiledLines, lines)
        for mine, (places, weight) in self._own.used(of.by_line):
            place = places[x]
            y = where(mine & (place >= 0), weight[place], y)  # -1 is some row, not taken
        if self._stacks is None or not self._filled:
            return y
        table, expands = self._stacks
        which = of.tiles.clamp(min=0).long()  # those without are not used
        made = table[which[:, :1], x[which[:, 1:]]].flatten(0, 1).float()
        return expands.add(y, made[None, None], of)

    def release(self) -> None:
        self._stacks = None
        self._filled.clear()
        self._own.release()

    def tensors(self) -> tuple[Tensor, ...]:
        stacks = () if self._stacks is None else (self._stacks[0], *self._stacks[1].tensors())
        return (*stacks, *self._own.tensors())


class StackedNorm(AdaptedProduct):
    """The slots of a norm: adapters' own weights and biases."""

    def __init__(
        self, room: AdapterRoom, with_weight: Callable[[Tensor], RowOp], weight: Tensor
    ) -> None:
        """`with_weight` makes the norm with another weight."""
        self._with_weight, self._like = with_weight, weight
        self._own = OwnPlaces(room.device)
        self._offsets = OwnOffsets(room.num_slots, len(weight), room.device)

    def load(self, slot: int, added: Sequence[Added]) -> None:
        self._own.free(slot)
        self._offsets.load(slot, None)

    def load_own(self, slot: int, own: OwnNumbers) -> None:
        self._offsets.load(slot, own.offset)
        if own.weight is not None:
            self._own.load(slot, (own.weight.to(self._like.dtype),))

    def add(self, x: Tensor, y: Tensor, lines: AdapterLines) -> Tensor:
        by_line = cast(TiledLines, lines).by_line
        for mine, (weight,) in self._own.used(by_line):
            y = where(mine, self._with_weight(weight)(x), y)
        return self._offsets.add(y, by_line)

    @property
    def variant(self) -> Hashable:
        own = self._own.variant, self._offsets.variant
        return own if any(own) else 0

    def release(self) -> None:
        self._own.release()
        self._offsets.release()

    def tensors(self) -> tuple[Tensor, ...]:
        return (*self._own.tensors(), *self._offsets.tensors())
