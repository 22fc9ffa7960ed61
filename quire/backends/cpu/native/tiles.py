"""bfloat16 products in AMX's tiles for encoders: float32 in and out, sums in float32.

Rows are rounded when they are put into tiles; between the two products of a feed-forward nothing
else is written. A row has the same bits in every batch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from quire.backends.cpu.native.header import struct
from quire.backends.cpu.native.library import library
from quire.backends.cpu.native.rows import KINDS

UNIT = 32  # rows, columns and depth are padded to multiples of it
NO_ACTIVATION = -1

Op = Callable[[Tensor], Tensor]
_Product = struct("quire_tiles_product")


def tiles() -> Tiles | None:
    """The products in tiles; None if the processor or the compiler has no AMX."""
    found = library()
    return Tiles(found) if found is not None and found.quire_has_tiles() else None


def _filled_up(count: int) -> int:
    return -(-count // UNIT) * UNIT


@dataclass(slots=True)
class Room:
    """Memory for tiles, used again by every product of a model, as one is computed at a time."""

    tiles: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.bfloat16))

    def of(self, rows: int, depth: int) -> int:
        """The address of memory for so many numbers."""
        wanted = _filled_up(rows) * _filled_up(depth)
        if self.tiles.numel() < wanted:
            self.tiles = torch.empty(wanted, dtype=torch.bfloat16)
        return self.tiles.data_ptr()


class Tiles:
    """Makes the products of one model, which share memory."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.room, self.between = Room(), Room()

    def make_linear(self, weight: Tensor, bias: Tensor | None) -> TileLinear:
        return TileLinear(self, weight, bias)

    def join(self, first: Op, second: Op, activation: str) -> Op | None:
        """second(activation(first(x))), where only tiles are written in between; None if that is
        not built."""
        kind = KINDS.get(activation)
        if kind is None or not isinstance(first, TileLinear) or not isinstance(second, TileLinear):
            return None
        return partial(self._joined, first, second, kind)

    def _joined(self, first: TileLinear, second: TileLinear, kind: int, x: Tensor) -> Tensor:
        between = self.between.of(len(x), first.columns)
        first.multiply(first.read(x), activation=kind, out_tiles=between)
        out = torch.empty(len(x), second.columns)
        second.multiply({"rows": len(x), "tiles": between}, out=out.data_ptr())
        return out


class TileLinear:
    """A weight [N, K] in tiles; the original tensor is not kept."""

    def __init__(self, tiles: Tiles, weight: Tensor, bias: Tensor | None) -> None:
        self.made_by = tiles
        self.bias = None if bias is None else bias.float().contiguous()
        self.columns, self.depth = weight.shape
        size = _filled_up(self.columns) * _filled_up(self.depth)
        self.packed = torch.empty(size, dtype=torch.bfloat16)
        self._pack(weight)

    def _pack(self, weight: Tensor) -> None:
        plain = weight.float().contiguous()
        self.made_by.library.quire_tiles_pack(
            plain.data_ptr(), self.columns, self.depth, self.packed.data_ptr()
        )

    def __call__(self, x: Tensor) -> Tensor:
        out = torch.empty(len(x), self.columns)
        self.multiply(self.read(x), out=out.data_ptr())
        return out

    def read(self, x: Tensor) -> dict[str, int]:
        """The rows of a product, and memory for their tiles, as fields of quire_tiles_product."""
        if x.stride(1) != 1:
            raise ValueError(f"rows of a product in tiles have gaps: {x.stride()}")
        tiles = self.made_by.room.of(len(x), self.depth)
        return {"rows": len(x), "x": x.data_ptr(), "x_stride": x.stride(0), "tiles": tiles}

    def multiply(self, rows: dict[str, int], **more: int) -> None:
        """activation(rows x weight^T + bias), written to the address in `more`."""
        work = _Product(
            columns=self.columns,
            depth=self.depth,
            bias=None if self.bias is None else self.bias.data_ptr(),
            packed=self.packed.data_ptr(),
            **{"activation": NO_ACTIVATION, **rows, **more},
        )
        self.made_by.library.quire_tiles_multiply(work)
