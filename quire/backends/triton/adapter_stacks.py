"""A and B of all slots of a product, stacked, and the launches that multiply with them.

Their addresses never change, so that captured passes stay valid.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quire.backends.adapter_ops import AdapterRoom, Added
from quire.backends.linear import Gate
from quire.backends.triton.adapter_kernels import expand_lines, shrink_lines
from quire.backends.triton.adapter_lines import Tiles
from quire.backends.triton.jit import power_of_two, precision, waiting

LEAST_RANK = 16  # the least rank of a product on the device
COLUMNS, DEPTH = 128, 128
# The part of the sum over K that one program computes; twice as much if K is long.
SHARE, LONG_INNER = 512, 8192


def stacked_rank(max_rank: int) -> int:
    """The rank for which A and B of every slot have memory."""
    return max(LEAST_RANK, power_of_two(max_rank))


class Expands:
    """B of all slots, [slots, N, rank], and DoRA's factors."""

    def __init__(self, room: AdapterRoom, rows: tuple[int, ...], bias: Tensor | None) -> None:
        self._room, self._bias, self.outer = room, bias, sum(rows)
        shape = (room.num_slots, self.outer, stacked_rank(room.max_rank))
        self.b = torch.zeros(shape, dtype=room.dtype, device=room.device)
        self.less: Tensor | None = None  # float32 [slots, N], once an adapter has factors
        blocks, self._parts = column_blocks(rows), len(rows)
        self._aligned = all(edge % 16 == 0 for _, *edges in blocks for edge in edges)
        tables = (blocks, column_blocks((self.outer // 2,)))
        made = (torch.tensor(one, dtype=torch.int32, device=room.device) for one in tables)
        self._blocks, self._gate_blocks = made

    def load(self, first: int, added: Sequence[Sequence[Added]]) -> None:
        """Joined on the host, so that one copy sends them."""
        count = len(added)
        b = torch.zeros(count, *self.b.shape[1:], dtype=self.b.dtype, device=_home(added))
        less = torch.zeros(count, self.outer, device=b.device)
        for number, some in enumerate(added):
            for one in some:
                last = one.first + len(one.b)
                b[number, one.first : last, : len(one.a)] = one.b
                if one.factor is not None:
                    less[number, one.first : last] = one.factor - 1.0
        self.b[first : first + count].copy_(b)
        if self.less is None and any(one.factor is not None for some in added for one in some):
            self.less = torch.zeros(self.b.shape[:2], device=self._room.device)
        if self.less is not None:
            self.less[first : first + count].copy_(less)

    def add(self, y: Tensor, made: Tensor | None, lines: Tiles, gate: Gate | None = None) -> Tensor:
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


class Stacks:
    """A of all slots, [slots, parts, rank, K], and the Expands of its results."""

    def __init__(
        self,
        room: AdapterRoom,
        rows: tuple[int, ...],
        columns: int,
        bias: Tensor | None,
        behind: Tensor | None = None,
    ) -> None:
        """`behind`: memory for A, if it is after a weight."""
        shape = (room.num_slots, len(rows), stacked_rank(room.max_rank), columns)
        own = torch.zeros(shape, dtype=room.dtype, device=room.device) if behind is None else behind
        self.a, self.expands = own.view(shape), Expands(room, rows, bias)

    def load(self, first: int, added: Sequence[Sequence[Added]]) -> None:
        """Put adapters into slots first, first + 1, ..."""
        a = torch.zeros(len(added), *self.a.shape[1:], dtype=self.a.dtype, device=_home(added))
        for number, some in enumerate(added):
            for one in some:
                a[number, one.part, : len(one.a)] = one.a
        self.a[first : first + len(added)].copy_(a)
        self.expands.load(first, added)

    def take_over(self, other: Stacks) -> None:
        """Copy the slots of another Stacks, which has fewer."""
        self.a[: len(other.a)] = other.a
        self.expands.b[: len(other.a)] = other.expands.b
        if other.expands.less is not None:
            self.expands.less = torch.zeros(self.expands.b.shape[:2], device=self.a.device)
            self.expands.less[: len(other.a)] = other.expands.less

    def add(self, x: Tensor, y: Tensor, lines: Tiles, gate: Gate | None = None) -> Tensor:
        """y [lines, N] of x [lines, K] with what adapters add to it."""
        return self.expands.add(y, self._shrunk(x, lines), lines, gate)

    def _shrunk(self, x: Tensor, lines: Tiles) -> Tensor:
        _, parts, rank, inner = self.a.shape
        share = SHARE if inner <= LONG_INNER else 2 * SHARE
        splits, places = -(-inner // share), lines.tiles.shape[0] * lines.rows
        made = torch.empty(splits, parts, places, rank, dtype=torch.float32, device=x.device)
        shrink_lines[(len(lines.tiles), parts, splits)](
            *(x, self.a, lines.tiles, made, x.stride(0)),
            INNER=inner,
            RANK=rank,
            PARTS=parts,
            ROWS=lines.rows,
            DEPTH=DEPTH if x.dtype.itemsize == 2 else DEPTH // 2,
            SHARE=share,
            PRECISION=precision(x.dtype),
            num_warps=4,
            **waiting(),
        )
        return made

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.a, *self.expands.tensors())


def column_blocks(rows: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """The columns of a product in blocks that do not cross parts: (part, first, end)."""
    found, first = [], 0
    for part, count in enumerate(rows):
        last = first + count
        found += [(part, at, last) for at in range(first, last, COLUMNS)]
        first = last
    return found


def _home(added: Sequence[Sequence[Added]]) -> torch.device | None:
    return next((one.a.device for some in added for one in some), None)
