"""LoRA adapters on the device: A and B of all slots stacked, lines in order of their slots.

Lines that share a slot are cut into tiles. One launch multiplies every tile with its slot's A, one
adds what its B makes of that to the product; neither asks which slots occur, and the number of
programs depends on the number of lines and slots alone, so a captured pass serves any lines. Sums
are added in the same order whatever else is in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from quire.backends.adapter_ops import AdaptedProduct, AdapterLines, AdapterRoom, Added
from quire.backends.triton.adapter_kernels import expand_lines, shrink_lines
from quire.backends.triton.jit import power_of_two, precision, waiting
from quire.request import Ints

LEAST_RANK = 16  # that products on the device have
FEW_LINES, FEW_ROWS, MANY_ROWS = 1024, 16, 64  # rows of a tile, by the lines of a pass
COLUMNS, DEPTH = 128, 128
# Of the sum over K, so much by one program; twice as much where K is long.
SHARE, LONG_INNER = 512, 8192


def tile_rows(num_lines: int) -> int:
    return FEW_ROWS if num_lines <= FEW_LINES else MANY_ROWS


def most_tiles(num_lines: int, num_slots: int) -> int:
    """Tiles that so many lines take at most, whichever slots they have."""
    return num_lines // tile_rows(num_lines) + min(num_slots, num_lines)


def tiled(slots: Ints, num_slots: int) -> tuple[Ints, Ints, Ints]:
    """Lines in the order of their slots, those without one last; tiles [most, 3] of them: slot,
    first in that order, count; and the slots in that order, 0 for those without one.

    Of 16 rows: 20 lines of slot 1 -> tiles [1 0 16] [1 16 4]."""
    rows, count = tile_rows(len(slots)), len(slots)
    order = np.argsort(np.where(slots < 0, num_slots, slots), kind="stable").astype(np.int32)
    tiles = np.zeros((most_tiles(count, num_slots), 3), np.int32)
    counts = np.bincount(slots[slots >= 0], minlength=num_slots)
    per_slot = -(-counts // rows)
    slot = np.repeat(np.arange(num_slots), per_slot)
    nth = np.arange(len(slot)) - np.repeat(np.cumsum(per_slot) - per_slot, per_slot)
    firsts = np.cumsum(counts) - counts
    tiles[: len(slot), 0] = slot
    tiles[: len(slot), 1] = firsts[slot] + nth * rows
    tiles[: len(slot), 2] = np.minimum(counts[slot] - nth * rows, rows)
    return order, tiles, np.maximum(slots[order], 0).astype(np.int32)


@dataclass(frozen=True, slots=True)
class TiledLines:
    """Lines on the device: `order` int32 [lines], `tiles` int32 [most, 3] and `in_order` int32
    [lines], as above; `slots` are those on the host."""

    slots: Ints
    num_slots: int
    order: Tensor
    tiles: Tensor
    in_order: Tensor

    @classmethod
    def of(cls, slots: Ints, num_slots: int, device: torch.device) -> TiledLines:
        arrays = (torch.from_numpy(one).to(device) for one in tiled(slots, num_slots))
        return cls(slots, num_slots, *arrays)

    @property
    def rows(self) -> int:
        return tile_rows(len(self.order))

    def take(self, lines: Ints) -> TiledLines:
        return TiledLines.of(self.slots[lines], self.num_slots, self.order.device)


class StackedAdapters:
    """Makes products whose slots lie on the device."""

    def __init__(self, room: AdapterRoom) -> None:
        self.room = room
        self.rank = max(LEAST_RANK, power_of_two(room.max_rank))

    def product(
        self, rows: tuple[int, ...], columns: int, bias: Tensor | None, *, seldom: bool
    ) -> AdaptedProduct:
        made = StackedProduct(self.room, self.rank, rows, columns, bias)
        if not seldom:
            made.make_room()
        return made

    def embedding(self, num_rows: int, width: int) -> AdaptedProduct:
        return StackedRows(self.room, self.rank, num_rows, width)

    def lines(self, slots: Ints) -> AdapterLines | None:
        if not (slots >= 0).any():
            return None
        return TiledLines.of(slots, self.room.num_slots, self.room.device)


class _Expands:
    """B of all slots, [slots, N, rank], and what DoRA has beside it."""

    def __init__(
        self, room: AdapterRoom, rank: int, rows: tuple[int, ...], bias: Tensor | None
    ) -> None:
        self._room, self._bias, self.outer = room, bias, sum(rows)
        shape = (room.num_slots, self.outer, rank)
        self.b = torch.zeros(shape, dtype=room.dtype, device=room.device)
        self.less: Tensor | None = None  # float32 [slots, N], once an adapter has factors
        self._blocks = torch.tensor(column_blocks(rows), dtype=torch.int32, device=room.device)

    def clear(self, slot: int) -> None:
        self.b[slot].zero_()
        if self.less is not None:
            self.less[slot].zero_()

    def load(self, slot: int, one: Added) -> None:
        last = one.first + len(one.b)
        self.b[slot, one.first : last, : len(one.a)].copy_(one.b)
        if one.factor is None:
            return
        if self.less is None:
            self.less = torch.zeros(self.b.shape[:2], device=self._room.device)
        self.less[slot, one.first : last].copy_(one.factor - 1.0)

    def add(self, made: Tensor, y: Tensor, lines: TiledLines) -> None:
        """made float32 [splits, parts, lines in order, rank]"""
        splits, parts, count, rank = made.shape
        less, bias = self.less, self._bias
        expand_lines[(len(lines.tiles), len(self._blocks))](
            *(made, self.b, made if less is None else less, made if bias is None else bias),
            *(y, lines.tiles, lines.order, self._blocks, y.stride(0), count),
            OUTER=self.outer,
            RANK=rank,
            PARTS=parts,
            SPLITS=splits,
            ROWS=lines.rows,
            COLUMNS=COLUMNS,
            HAS_FACTOR=less is not None,
            HAS_BIAS=bias is not None,
            PRECISION=precision(y.dtype),
            num_warps=4,
            **waiting(),
        )

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.b,) if self.less is None else (self.b, self.less)


class StackedProduct:
    """One product's slots: a [slots, parts, rank, K] and b [slots, N, rank]. Where no slot holds
    anything, nothing is launched."""

    def __init__(
        self,
        room: AdapterRoom,
        rank: int,
        rows: tuple[int, ...],
        columns: int,
        bias: Tensor | None,
    ) -> None:
        self._room, self._given = room, (rank, rows, columns, bias)
        self._share = SHARE if columns <= LONG_INNER else 2 * SHARE
        self._stacks: tuple[Tensor, _Expands] | None = None
        self._filled: set[int] = set()

    @property
    def variant(self) -> int:
        if self._stacks is None or not self._filled:
            return 0
        return 1 if self._stacks[1].less is None else 2

    def make_room(self) -> tuple[Tensor, _Expands]:
        """Memory for all slots, if it is not there yet."""
        if self._stacks is None:
            rank, rows, columns, bias = self._given
            shape = (self._room.num_slots, len(rows), rank, columns)
            a = torch.zeros(shape, dtype=self._room.dtype, device=self._room.device)
            self._stacks = a, _Expands(self._room, rank, rows, bias)
        return self._stacks

    def load(self, slot: int, added: Sequence[Added]) -> None:
        if slot in self._filled:
            a, expands = self.make_room()
            a[slot].zero_()
            expands.clear(slot)
            self._filled.remove(slot)
        for one in added:
            a, expands = self.make_room()
            a[slot, one.part, : len(one.a)].copy_(one.a)
            expands.load(slot, one)
            self._filled.add(slot)

    def add(self, x: Tensor, y: Tensor, lines: AdapterLines) -> Tensor:
        if self._stacks is None or not self._filled:
            return y
        (a, expands), of = self._stacks, cast(TiledLines, lines)
        expands.add(self._shrunk(x, a, of), y, of)
        return y

    def _shrunk(self, x: Tensor, a: Tensor, lines: TiledLines) -> Tensor:
        _, parts, rank, inner = a.shape
        splits, count = -(-inner // self._share), len(lines.order)
        made = torch.empty(splits, parts, count, rank, dtype=torch.float32, device=x.device)
        shrink_lines[(len(lines.tiles), parts, splits)](
            *(x, a, lines.tiles, lines.order, made, x.stride(0), count),
            INNER=inner,
            RANK=rank,
            PARTS=parts,
            ROWS=lines.rows,
            DEPTH=DEPTH if x.dtype.itemsize == 2 else DEPTH // 2,
            SHARE=self._share,
            PRECISION=precision(x.dtype),
            num_warps=4,
            **waiting(),
        )
        return made

    def release(self) -> None:
        self._stacks = None
        self._filled.clear()

    def tensors(self) -> tuple[Tensor, ...]:
        return () if self._stacks is None else (self._stacks[0], *self._stacks[1].tensors())


class StackedRows:
    """An embedding's slots: tables [slots, V, rank], looked up, then B as for a product."""

    def __init__(self, room: AdapterRoom, rank: int, num_rows: int, width: int) -> None:
        self._room, self._sizes = room, (num_rows, width, rank)
        self._stacks: tuple[Tensor, _Expands] | None = None  # made when an adapter has some
        self._filled: set[int] = set()

    @property
    def variant(self) -> int:
        return int(bool(self._filled))

    def load(self, slot: int, added: Sequence[Added]) -> None:
        num_rows, width, rank = self._sizes
        if self._stacks is None and added:
            shape = (self._room.num_slots, num_rows, rank)
            table = torch.zeros(shape, dtype=self._room.dtype, device=self._room.device)
            self._stacks = table, _Expands(self._room, rank, (width,), None)
        if self._stacks is None:
            return
        table, expands = self._stacks
        table[slot].zero_()
        expands.clear(slot)
        self._filled.discard(slot)
        for one in added:
            table[slot, :, : len(one.a)].copy_(one.a.t())
            expands.load(slot, one)
            self._filled.add(slot)

    def add(self, x: Tensor, y: Tensor, lines: AdapterLines) -> Tensor:
        if self._stacks is None or not self._filled:
            return y
        (table, expands), tiled_lines = self._stacks, cast(TiledLines, lines)
        tokens = x.index_select(0, tiled_lines.order)
        made = table[tiled_lines.in_order.long(), tokens].float()
        expands.add(made[None, None], y, tiled_lines)
        return y

    def release(self) -> None:
        self._stacks = None
        self._filled.clear()

    def tensors(self) -> tuple[Tensor, ...]:
        return () if self._stacks is None else (self._stacks[0], *self._stacks[1].tensors())


def column_blocks(rows: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """The columns of a product in blocks, none across two parts: part, first, behind the last."""
    found, first = [], 0
    for part, count in enumerate(rows):
        last = first + count
        found += [(part, at, last) for at in range(first, last, COLUMNS)]
        first = last
    return found
