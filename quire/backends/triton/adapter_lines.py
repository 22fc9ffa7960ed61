"""Lines of a pass sorted by slot and cut into tiles; a program computes one tile."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from quire.request import Ints

FEW_LINES, FEW_ROWS, MANY_ROWS = 1024, 16, 64  # rows of a tile, by the lines of a pass
NO_SLOT, UNUSED = -1, -2  # of tiles


def tile_rows(num_lines: int) -> int:
    return FEW_ROWS if num_lines <= FEW_LINES else MANY_ROWS


def most_tiles(num_lines: int, num_slots: int) -> int:
    """The most tiles that so many lines take, for any slots."""
    return num_lines // tile_rows(num_lines) + min(num_slots + 1, num_lines)


def tiled(slots: Ints, num_slots: int) -> Ints:
    """Tiles [most, 1 + rows] of lines with the same slot: the slot, then the lines, -1 after the
    last. Lines without a slot are in tiles of NO_SLOT; tiles that are not needed are UNUSED.

    With 16 rows: 20 lines of slot 1 -> [1 0 1 .. 15] [1 16 .. 19 -1 -1 ..] [-2 -1 -1 ..]."""
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
class Tiles:
    """`tiles` int32 [most, 1 + rows] as above, on the device."""

    tiles: Tensor

    @property
    def rows(self) -> int:
        return self.tiles.shape[1] - 1

    @classmethod
    def of_kinds(cls, kinds: Tensor, num_kinds: int) -> Tiles:
        """The tiles of lines whose kinds (-1: none) are only on the device; lines of no kind are in
        no tile. Nothing is read from the device, so a captured pass serves any kinds."""
        count, device = len(kinds), kinds.device
        rows = FEW_ROWS if count <= 2 * FEW_ROWS * num_kinds else MANY_ROWS
        most = count // rows + min(num_kinds, count)
        of, order = torch.where(kinds < 0, num_kinds, kinds).sort(stable=True)
        counts = kinds.new_zeros(num_kinds + 1).scatter_add_(0, of, torch.ones_like(of))
        per_kind = (counts + rows - 1) // rows
        nth = torch.arange(count, device=device) - (counts.cumsum(0) - counts)[of]
        tile = (per_kind.cumsum(0) - per_kind)[of] + nth // rows
        tile = torch.where(of < num_kinds, tile, most)  # one more than is kept
        tiles = torch.full((most + 1, 1 + rows), -1, dtype=torch.int32, device=device)
        tiles[:, 0] = UNUSED
        tiles[tile, 1 + nth % rows] = order.int()
        tiles[tile, 0] = of.int()
        return cls(tiles[:most])


@dataclass(frozen=True, slots=True)
class TiledLines(Tiles):
    """Lines on the device: their tiles, and the slot of each, int64 [T]; `slots` is the same on the
    host."""

    by_line: Tensor
    slots: Ints
    num_slots: int

    @classmethod
    def of(cls, slots: Ints, num_slots: int, device: torch.device) -> TiledLines:
        tiles = torch.from_numpy(tiled(slots, num_slots)).to(device)
        return cls(tiles, torch.from_numpy(slots).to(device, torch.int64), slots, num_slots)

    def take(self, lines: Ints) -> TiledLines:
        return TiledLines.of(self.slots[lines], self.num_slots, self.tiles.device)
