"""Products with plain weights in 16 bits on Hopper, for up to MOST_ROWS rows, by plain.cu.

A tile's lines do not depend on the number of rows, so a row has the same bits in every batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from quire.backends.cuda_c.few_rows import AddedRows, NormedRows, Way
from quire.backends.cuda_c.launch import Argument, CudaKernel
from quire.backends.cuda_c.products import (
    CONTROL,
    DEPTH,
    EIGHT,
    SHARED,
    load_onto,
    map_of,
    product_macros,
)
from quire.base.notes import note

if TYPE_CHECKING:
    from quire.backends.triton.small_batch import Product

MOST_ROWS, MOST_HEAD_ROWS = 128, 64  # with more, the vendor's library is faster
_CORES = 132
_GROUP = 64  # rows
_WIDEST = 256  # lines of one instruction
_FEWEST_STEPS = 4  # of a block that shares columns
_MOST_STAGES = 15  # barriers have 256 bytes
_FLOAT = 4


@dataclass(frozen=True, slots=True)
class PlainTile:
    """What a block computes: `lines` for 64 * `groups` rows, with the columns shared by `splits`
    blocks."""

    groups: int
    lines: int
    splits: int

    @property
    def rows(self) -> int:
        return _GROUP * self.groups

    @property
    def stages(self) -> int:
        """As many as fit."""
        room = SHARED - CONTROL - self._sent_bytes
        return min(_MOST_STAGES, room // self._stage_bytes)

    @property
    def shared_bytes(self) -> int:
        return CONTROL + self.stages * self._stage_bytes + self._sent_bytes

    @property
    def _stage_bytes(self) -> int:
        return 2 * DEPTH * (self.rows + self.lines)

    @property
    def _sent_bytes(self) -> int:
        """Of sums that other blocks send."""
        return self.rows * self.lines * _FLOAT * (self.splits - 1) // self.splits

    def blocks(self, num_lines: int) -> int:
        return -(-num_lines // self.lines) * self.splits


@cache
def plain_tile(shape: tuple[int, int], num_rows: int, way: Way = "plain") -> PlainTile:
    """The tile for a weight [lines, columns]: one block for each core, or as many for each where
    that would be too wide a block. Where that would be too narrow, a few blocks share the columns,
    since each of them reads as much of x as a wide one. Measured by benchmarks/gpu_plain.py."""
    lines, columns = shape
    groups = 1 if num_rows <= _GROUP else 2
    splits, blocks = 1, _CORES * -(-lines // (_CORES * _WIDEST))
    if lines < 112 * _CORES:
        # 66 clusters of two fit on these cores, and 30 of four.
        splits, blocks = (2, 66) if lines >= 24 * 66 else (4, 30)
    while splits > 1 and columns < splits * _FEWEST_STEPS * DEPTH:
        splits, blocks = splits // 2, _CORES // max(1, splits // 2)
    unit = EIGHT * splits * (2 if way == "gated" else 1)
    return PlainTile(groups, min(_WIDEST, -(-lines // (blocks * unit)) * unit), splits)


@cache
def kernel_of(tile: PlainTile, half: bool, way: Way = "plain") -> CudaKernel:
    """The kernel, which is the same for all shapes."""
    return CudaKernel(
        "plain.cu",
        "multiply",
        {
            "GROUPS": tile.groups,
            **product_macros(tile.lines),
            "STAGES": tile.stages,
            "SPLITS": tile.splits,
            "HALF": int(half),
            "NORMED": int(way in ("normed", "gated")),
            "GATED": int(way == "gated"),
            "ADDS": int(way == "adds"),
        },
        threads=128 * tile.groups + 32,
        shared=tile.shared_bytes,
        cluster=tile.splits,
        overlaps=True,
    )


def load_kernels(products: Iterable[Product], device: torch.device) -> bool:
    """Load the kernels of these products onto a device, compiled in parallel; whether they could be
    loaded. If not, that is noted once."""
    wanted: dict[tuple[PlainTile, bool, Way], None] = {}
    for one in products:
        half, way = one.dtype == torch.float16, way_of(one)
        for rows in (_GROUP, MOST_ROWS):
            wanted[plain_tile((one.num_lines, one.inner), rows, way), half, way] = None
    return load_onto(device, [partial(kernel_of, *one) for one in wanted], note_missing)


def way_of(product: Product) -> Way:
    return "gated" if product.gated else "normed" if product.normed else "adds"


@cache
def note_missing(why: str) -> None:
    note(f"Products of few rows are Triton's, which are slower: {why}")


def multiply_plain(
    weight: Tensor,
    x: Tensor,
    bias: Tensor | None,
    *,
    norm: NormedRows | None = None,
    gated: bool = False,
    added: AddedRows | None = None,
    tile: PlainTile | None = None,
) -> Tensor:
    """x weight^T + bias. With `norm`, these sums normed; `gated`: silu of the first half of the
    lines, times the second half; or `added`."""
    way: Way = "adds" if added else "plain" if norm is None else "gated" if gated else "normed"
    x, (lines, columns) = x.contiguous(), weight.shape
    tile = tile or plain_tile((lines, columns), len(x), way)
    outer = lines // 2 if gated else lines
    out = added.stream if added else x.new_empty(len(x), outer)
    more: tuple[Argument, ...] = (None, 0, 0.0, None, None, None)
    if norm is not None:
        more = (norm.squares, norm.squares.shape[1], norm.eps, None, None, None)
    elif added is not None:
        more = (None, 0, 0.0, added.norm, added.scaled, added.squares)
    x_rows = -(-min(len(x), tile.rows) // EIGHT) * EIGHT
    kernel_of(tile, x.dtype == torch.float16, way)(
        (tile.blocks(lines), -(-len(x) // tile.rows), 1),
        *(map_of(x, x_rows), map_of(weight, tile.lines // 2 if gated else tile.lines)),
        *(bias, out, len(x), x_rows, outer, columns, *more),
    )
    return out


def num_parts(weight: Tensor, num_rows: int) -> int:
    """The parts of a row of which a product that adds writes sums of squares."""
    lines, columns = weight.shape
    return plain_tile((lines, columns), num_rows, "adds").blocks(lines)
