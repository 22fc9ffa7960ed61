"""LoRA adapters on the device: A and B of all slots stacked, lines in order of their slots.

Lines that share a slot are cut into tiles. One launch multiplies every tile with its slot's A, one
adds what its B makes of that to the product, or makes the product, too (adapted.py); neither asks
which slots occur, and the number of programs depends on the number of lines and slots alone, so a
captured pass serves any lines. Sums are added in the same order whatever else is in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from quire.backends.adapter_ops import AdaptedProduct, AdapterLines, AdapterRoom, Added
from quire.backends.linear import Gate, LinearOp
from quire.backends.plain import PlainLinear
from quire.backends.triton.adapter_kernels import expand_lines, shrink_lines
from quire.backends.triton.jit import power_of_two, precision, waiting
from quire.request import Ints

LEAST_RANK = 16  # that products on the device have
FEW_LINES, FEW_ROWS, MANY_ROWS = 1024, 16, 64  # rows of a tile, by the lines of a pass
NO_SLOT, UNUSED = -1, -2  # of tiles
COLUMNS, DEPTH = 128, 128
# Of the sum over K, so much by one program; twice as much where K is long.
SHARE, LONG_INNER = 512, 8192
# A of all slots stands behind a weight if it has at most so many lines of each of the weight's,
# and is multiplied by with it in passes of at most so many lines.
MOST_BEHIND, MOST_LINES_BEHIND = 0.5, 512


def tile_rows(num_lines: int) -> int:
    return FEW_ROWS if num_lines <= FEW_LINES else MANY_ROWS


def most_tiles(num_lines: int, num_slots: int) -> int:
    """Tiles that so many lines take at most, whichever slots they have."""
    return num_lines // tile_rows(num_lines) + min(num_slots + 1, num_lines)


def tiled(slots: Ints, num_slots: int) -> Ints:
    """Tiles [most, 1 + rows] of lines that share a slot: the slot, and the lines, -1 behind the
    last. Lines without one stand in tiles of NO_SLOT; tiles that are not needed are of UNUSED.

    Of 16 rows: 20 lines of slot 1 -> [1 0 1 .. 15] [1 16 .. 19 -1 -1 ..] [-2 -1 -1 ..]."""
    rows, count = tile_rows(len(slots)), len(slots)
    kinds = np.where(slots < 0, num_slots, slots)
    order = np.argsort(kinds, kind="stable")
    counts = np.bincount(kinds, minlength=num_slots + 1)
    per_kind = -(-counts // rows)
    nth = np.arange(count) - np.repeat(np.cumsum(counts) - counts, counts)
    tile = np.repeat(np.cumsum(per_kind) - per_kind, counts) + nth // rows
    tiles = np.full((most_tiles(count, num_slots), 1 + rows), -1, np.int32)
    tiles[tile, 1 + nth % rows] = order
    of = np.repeat([*range(num_slots), NO_SLOT], per_kind)
    tiles[: len(of), 0], tiles[len(of) :, 0] = of, UNUSED
    return tiles


@dataclass(frozen=True, slots=True)
class TiledLines:
    """Lines on the device: `tiles` int32 [most, 1 + rows] as above; `slots` are those on the
    host."""

    slots: Ints
    num_slots: int
    tiles: Tensor

    @classmethod
    def of(cls, slots: Ints, num_slots: int, device: torch.device) -> TiledLines:
        return cls(slots, num_slots, torch.from_numpy(tiled(slots, num_slots)).to(device))

    @property
    def rows(self) -> int:
        return self.tiles.shape[1] - 1

    def take(self, lines: Ints) -> TiledLines:
        return TiledLines.of(self.slots[lines], self.num_slots, self.tiles.device)


class StackedAdapters:
    """Makes products whose slots lie on the device."""

    def __init__(self, room: AdapterRoom) -> None:
        self.room = room
        self.rank = max(LEAST_RANK, power_of_two(room.max_rank))

    def product(
        self,
        rows: tuple[int, ...],
        columns: int,
        bias: Tensor | None,
        *,
        seldom: bool,
        base: LinearOp | None = None,
    ) -> AdaptedProduct:
        made = StackedProduct(self.room, self.rank, rows, columns, bias)
        if not seldom:
            if isinstance(base, PlainLinear) and made.fits_behind(base):
                made.stand_behind(base)
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
        blocks, self._parts = column_blocks(rows), len(rows)
        self._aligned = all(edge % 16 == 0 for _, *edges in blocks for edge in edges)
        tables = (blocks, column_blocks((self.outer // 2,)))
        made = (torch.tensor(one, dtype=torch.int32, device=room.device) for one in tables)
        self._blocks, self._gate_blocks = made

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

    def add(
        self, y: Tensor, made: Tensor | None, lines: TiledLines, gate: Gate | None = None
    ) -> Tensor:
        """y [lines, N] with what adapters add to it, in place where `made` float32 [splits, parts,
        lines by tile, rank] is what A made; where it is None, that stands behind y, and y has no
        bias yet. With a gate: what it lets through, [lines, N / 2]."""
        _, outer, rank = self.b.shape
        less, bias, out = self.less, self._bias, y
        blocks = self._blocks if gate is None else self._gate_blocks
        if made is None or gate is not None:
            out = y.new_empty(len(y), outer if gate is None else outer // 2)
        expand_lines[(len(lines.tiles), len(blocks))](
            *(y, y if made is None else made, self.b, self.b if less is None else less),
            *(y if bias is None else bias, lines.tiles, blocks, out, y.stride(0), out.stride(0)),
            OUTER=outer,
            RANK=rank,
            PARTS=self._parts,
            SPLITS=0 if made is None else len(made),
            ROWS=lines.rows,
            COLUMNS=COLUMNS,
            ALIGNED=self._aligned and (gate is None or outer % 32 == 0),
            GATE=None if gate is None else gate.activation,
            HAS_FACTOR=less is not None,
            HAS_BIAS=bias is not None,
            PRECISION=precision(y.dtype),
            num_warps=4,
            **waiting(),
        )
        return out

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.b,) if self.less is None else (self.b, self.less)


class StackedProduct(AdaptedProduct):
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
        self._wide: Tensor | None = None  # the weight, and a behind it
        self._stacks: tuple[Tensor, _Expands] | None = None
        self._filled: set[int] = set()

    def fits_behind(self, base: PlainLinear) -> bool:
        """Whether a product with the weight and all A, of which a line uses one, is worth it."""
        rank, rows, _, _ = self._given
        lines = self._room.num_slots * len(rows) * rank
        return base.weight.dtype == self._room.dtype and lines <= MOST_BEHIND * sum(rows)

    def stand_behind(self, base: PlainLinear) -> None:
        """Have A of all slots in the same memory as the weight, which is copied there: one
        product makes both."""
        rank, rows, columns, _ = self._given
        outer, lines = sum(rows), self._room.num_slots * len(rows) * rank
        self._wide = base.weight.new_zeros(outer + lines, columns)
        self._wide[:outer] = base.weight
        base.weight = self._wide[:outer]

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
            if self._wide is None:
                a = torch.zeros(shape, dtype=self._room.dtype, device=self._room.device)
            else:
                a = self._wide[sum(rows) :].view(shape)
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
        if not self._filled:
            return y
        (a, expands), of = self.make_room(), cast(TiledLines, lines)
        return expands.add(y, self._shrunk(x, a, of), of)

    def multiply(self, base: LinearOp, x: Tensor, lines: AdapterLines) -> Tensor:
        return self._multiply(base, x, lines, None)

    def multiply_gated(self, base: LinearOp, gate: Gate, x: Tensor, lines: AdapterLines) -> Tensor:
        return self._multiply(base, x, lines, gate)

    def _multiply(
        self, base: LinearOp, x: Tensor, lines: AdapterLines, gate: Gate | None
    ) -> Tensor:
        if not self._filled:
            return base(x) if gate is None else gate.opened(base(x))
        (a, expands), of = self.make_room(), cast(TiledLines, lines)
        if self._wide is not None and len(x) <= MOST_LINES_BEHIND:
            return expands.add(F.linear(x, self._wide), None, of, gate)
        return expands.add(base(x), self._shrunk(x, a, of), of, gate)

    def _shrunk(self, x: Tensor, a: Tensor, lines: TiledLines) -> Tensor:
        _, parts, rank, inner = a.shape
        splits, places = -(-inner // self._share), lines.tiles.shape[0] * lines.rows
        made = torch.empty(splits, parts, places, rank, dtype=torch.float32, device=x.device)
        shrink_lines[(len(lines.tiles), parts, splits)](
            *(x, a, lines.tiles, made, x.stride(0)),
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
        if self._wide is not None and self._stacks is not None:
            self._stacks[0].zero_()  # its memory goes and comes with the weight's
        self._stacks = None
        self._filled.clear()

    def tensors(self) -> tuple[Tensor, ...]:
        return () if self._stacks is None else (self._stacks[0], *self._stacks[1].tensors())


class StackedRows(AdaptedProduct):
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
        (table, expands), of = self._stacks, cast(TiledLines, lines)
        which = of.tiles.clamp(min=0).long()  # those without are not used
        made = table[which[:, :1], x[which[:, 1:]]].flatten(0, 1).float()
        return expands.add(y, made[None, None], of)

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
