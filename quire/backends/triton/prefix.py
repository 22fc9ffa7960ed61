"""Shared prefixes: the blocks that many rows begin with are read once for all of them.

The queries of a group's members stand beside each other as rows of a matrix product, tile by
tile; each tile against each stretch of the prefix is an item of a work list that the host makes
when groups change and the device reads at every step. What a member gets from a prefix is one
or more parts, merged in decode.py with what it reads by itself.

Two levels: rows 0..7 begin with blocks A B; rows 0..3 of them go on with C D. The groups
(A B, rows 0..7) and (A B C D, rows 0..3) become A B for eight rows and C D for four, and rows
0..3 have parts of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quire.backends.ops import HeadShape
from quire.backends.triton.prefix_kernels import attend_prefixes
from quire.backends.triton.tiles import LOG2_E, Tile, attend_constants, many_queries_tile

Ints = npt.NDArray[np.int32]

LEVELS = 2
_FIELDS = 8  # numbers of an item; six are used
_LEAST_STRETCH = 256  # tokens; below, merging costs more than balance gains


class PartsRoom(Protocol):
    """The memory for parts of a step (decode.py); those of prefixes begin at `num_own`."""

    @property
    def parts(self) -> Tensor: ...

    @property
    def sums(self) -> Tensor: ...

    @property
    def num_own(self) -> int: ...


@dataclass(frozen=True, slots=True)
class PrefixSize:
    """The size of a work list, which is part of a graph's key."""

    queries: int  # of a tile: 64 or 128
    items: int
    members: int  # rows in groups, counted per level
    blocks: int  # of all groups together
    parts: int  # that members may get

    @staticmethod
    def of(shape: HeadShape, num_rows: int, *, queries: int = 64, blocks: int = 4096) -> PrefixSize:
        """A size that allows every row in two levels of groups."""
        per_tile = max(1, queries // shape.group)
        spare = 256
        return PrefixSize(
            queries=queries,
            items=-(-LEVELS * num_rows // per_tile) + spare,
            members=LEVELS * num_rows,
            blocks=blocks,
            parts=LEVELS * num_rows + 2 * spare,
        )


@dataclass(frozen=True, slots=True)
class Stretch:
    """Blocks [first, end) of a group's list, for members that do not have them from earlier
    groups."""

    blocks: Ints
    first: int
    members: Ints


class PrefixWork:
    """A work list of fixed size at fixed addresses."""

    def __init__(
        self,
        shape: HeadShape,
        max_rows: int,
        device: torch.device,
        size: PrefixSize,
        *,
        num_cores: int = 132,
        tile: Tile | None = None,
    ) -> None:
        self.shape, self.size, self._num_cores = shape, size, num_cores
        self._tile = tile or many_queries_tile(shape, size.queries)
        lengths = [size.items * _FIELDS, size.members, size.blocks, max_rows * LEVELS * 2, max_rows]
        self._host = torch.zeros(sum(lengths), dtype=torch.int32)
        self._device = torch.zeros(sum(lengths), dtype=torch.int32, device=device)
        host = np.split(self._host.numpy(), np.cumsum(lengths)[:-1])
        self._items = host[0].reshape(size.items, _FIELDS)
        self._members, self._blocks = host[1], host[2]
        self._spans, self._covered = host[3].reshape(max_rows, LEVELS, 2), host[4]
        items, members, blocks, spans, covered = torch.split(self._device, lengths)
        self._work = (items, members, blocks)
        self.spans: Tensor = spans.view(max_rows, LEVELS, 2)  # (first part, number) per level
        self.covered: Tensor = covered  # tokens of each place that its groups compute

    def fill(self, groups: Sequence[tuple[Ints, Ints]]) -> int:
        """Take over these groups: (blocks, places of the rows whose tables begin with them).

        A member's context must reach beyond the blocks. Returns how many (row, level) are
        served; what does not fit is left to the rows themselves. One asynchronous copy on the
        current stream.
        """
        self._host.zero_()
        room = self.size
        levels = np.zeros(len(self._covered), np.int32)
        num_items = num_members = num_blocks = num_parts = 0
        stretches = self._stretches(groups)
        length = self._balanced(stretches)
        for piece in stretches:
            count, width = len(piece.members), len(piece.blocks)
            reached = piece.first * self.shape.block_size
            if (self._covered[piece.members] != reached).any():
                continue  # the part before did not fit
            if num_members + count > room.members or num_blocks + width > room.blocks:
                continue
            cuts = self._cuts(piece, length, num_items, num_parts)
            if not cuts:
                continue
            self._members[num_members : num_members + count] = piece.members
            self._blocks[num_blocks : num_blocks + width] = piece.blocks
            made = self._make_items(piece, cuts, num_members, num_blocks, num_parts)
            self._items[num_items : num_items + len(made)] = made
            level = levels[piece.members]
            parts = num_parts + np.arange(count, dtype=np.int32) * (len(cuts) - 1)
            self._spans[piece.members, level, 0] = parts
            self._spans[piece.members, level, 1] = len(cuts) - 1
            self._covered[piece.members] = (piece.first + width) * self.shape.block_size
            levels[piece.members] += 1
            num_items, num_members = num_items + len(made), num_members + count
            num_blocks, num_parts = num_blocks + width, num_parts + count * (len(cuts) - 1)
        # A pinned copy of its own: torch keeps it until the device has read it.
        pinned = self._device.device.type == "cuda"
        staged = self._host.pin_memory() if pinned else self._host
        self._device.copy_(staged, non_blocking=True)
        return num_members

    def attend(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        context_lens: Tensor,
        buffers: PartsRoom,
        window: int | None,
    ) -> None:
        """Compute all items' parts; they are after the rows' own in the buffers."""
        shape = self.shape
        attend_prefixes[(self.size.items, shape.num_kv_heads)](
            *(q, keys, values, *self._work, context_lens, buffers.parts, buffers.sums),
            *(buffers.num_own, q.stride(0), shape.scale * LOG2_E, window or 0),
            HAS_WINDOW=window is not None,
            **attend_constants(shape, self._tile),
        )

    def _stretches(self, groups: Sequence[tuple[Ints, Ints]]) -> list[Stretch]:
        """Groups as stretches that add up: each begins where its members' earlier ones end."""
        covered, depth = np.zeros((2, len(self._covered)), np.int64)
        made = []
        for blocks, members in sorted(groups, key=lambda group: len(group[0])):
            for first in sorted(set(covered[members].tolist())):
                some = members[(covered[members] == first) & (depth[members] < LEVELS)]
                if len(some) > 1 and first < len(blocks):
                    made.append(Stretch(blocks[first:], first, some.astype(np.int32)))
                    covered[some], depth[some] = len(blocks), depth[some] + 1
        return made

    def _balanced(self, stretches: list[Stretch]) -> int:
        """The tokens for each program, such that each core has two programs."""
        blocks = sum(self._num_tiles(len(one.members)) * len(one.blocks) for one in stretches)
        tokens = blocks * self.shape.block_size * self.shape.num_kv_heads
        return max(_LEAST_STRETCH, tokens // (2 * self._num_cores))

    def _num_tiles(self, num_members: int) -> int:
        return -(-num_members // max(1, self.size.queries // self.shape.group))

    def _cuts(self, piece: Stretch, length: int, num_items: int, num_parts: int) -> list[int]:
        """Where to cut the blocks into pieces of about `length` tokens; [] if there is no room."""
        num_members, width = len(piece.members), len(piece.blocks)
        tiles, tokens = self._num_tiles(num_members), width * self.shape.block_size
        wanted, most = -(-tokens // length), max(1, tokens // _LEAST_STRETCH)
        free = (self.size.items - num_items) // tiles
        free = min(free, (self.size.parts - num_parts) // num_members)
        # Leave most of the spare room to the groups that follow.
        count = min(wanted, most, max(1, free // 4))
        if free < 1:
            return []
        return [width * i // count for i in range(count + 1)]

    def _make_items(
        self, piece: Stretch, cuts: list[int], at_member: int, at_block: int, at_part: int
    ) -> Ints:
        """Rows of (first member, members, first block, tokens, first position, first part,
        parts per member, 0): every tile of members with every stretch."""
        size, per_tile = self.shape.block_size, max(1, self.size.queries // self.shape.group)
        count, parts = len(piece.members), len(cuts) - 1
        rows = [
            (
                at_member + first,
                min(per_tile, count - first),
                at_block + begin,
                (end - begin) * size,
                (piece.first + begin) * size,
                at_part + first * parts + number,
                parts,
                0,
            )
            for number, (begin, end) in enumerate(zip(cuts[:-1], cuts[1:], strict=True))
            for first in range(0, count, per_tile)
        ]
        return np.asarray(rows, np.int32)
