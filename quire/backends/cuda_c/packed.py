"""Products with weights in 4-bit codes, by the kernels of packed.cu."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from quire.backends.cuda_c.few_rows import AddedRows, NormedRows, Way
from quire.backends.cuda_c.launch import Argument, CudaKernel
from quire.backends.quantised import SMALL_GROUPS, WIDE_GROUP
from quire.backends.quantised.fragments import FragmentMatrix

MOST_ROWS = 32  # with more, the vendor's library is faster with the plain weight
SQUARES = 64  # lines to a part of the sums of squares
LINES = 128  # products with a norm, gate or addition need a multiple of so many lines
_CORES = 132
_STAGES = 6  # more are of no use
_SHARED = 227 << 10  # bytes of shared memory of a core
_RESERVED = 1 << 10  # reserved bytes of each block
_SPLITS = (1, 2, 4, 8)
_FEWEST_STEPS = 4  # of a block that shares columns: with two, adding up took longer than it saved
# By rows: `along`, `parts`, `tall` and `blocks` of a PackedTile, and its speed where all cores are
# as busy.
_FEW_ROWS = {(2, 4, 4, 2): 1.0, (1, 4, 4, 4): 0.94, (2, 4, 2, 3): 0.92}
_TILES: dict[int, dict[tuple[int, int, int, int], float]] = {
    8: _FEW_ROWS,
    16: _FEW_ROWS,
    32: {(4, 2, 2, 2): 1.0, (2, 2, 2, 4): 0.96},
    64: {(4, 2, 2, 1): 1.0},
}


@dataclass(frozen=True, slots=True)
class PackedTile:
    """What a block computes: `along` warps of 16 * `tall` lines each, and `parts` warps that share
    the columns of a stage. `blocks`: how many a core should hold. Its lines are whole 64s."""

    rows: int
    along: int
    parts: int
    tall: int
    stages: int
    blocks: int

    @property
    def lines(self) -> int:
        return 16 * self.tall * self.along

    @property
    def depth(self) -> int:
        """Columns of a stage."""
        return 64 * self.parts

    def steps(self, shape: tuple[int, int]) -> int:
        """Stages of all columns."""
        return -(-shape[1] // self.depth)


@dataclass(frozen=True, slots=True)
class PackedKind:
    """The constants of kernels, besides the tile."""

    group: int
    half: bool  # float16, else bfloat16
    scales_half: bool
    second: int  # 0: none, 1: zero points, 2: minima
    zero: int
    fp4: bool = False

    def stage_bytes(self, tile: PackedTile) -> int:
        scales = tile.depth // min(self.group, tile.depth) * -(-tile.lines // 64) * 128
        codes_and_x = tile.depth * (tile.lines // 2 + 2 * tile.rows)
        return codes_and_x + scales * (2 if self.second else 1)

    def shared_bytes(self, tile: PackedTile) -> int:
        sums = tile.parts * tile.rows * (tile.lines + 4) * 4
        return max(sums, tile.stages * self.stage_bytes(tile))


@cache
def packed_tile(
    kind: PackedKind, num_rows: int, shape: tuple[int, int], way: Way = "plain"
) -> tuple[PackedTile, int]:
    """The tile for a weight [lines, columns], and how many blocks share its columns: those that
    keep the most of the cores busy, by measurements (benchmarks/gpu_packed.py)."""
    rows = next((one for one in _TILES if num_rows <= one), 64)
    best, found = 0.0, None
    for size, speed in _TILES[rows].items():
        tile = with_stages(kind, rows, size)
        if way == "gated" and tile.lines % LINES:
            continue
        for splits in _SPLITS:
            if splits > 1 and not can_split(shape, tile, splits):
                break
            busy = speed * busy_cores(shape, tile, splits)
            if busy > best:
                best, found = busy, (tile, splits)
    if found is None:
        raise ValueError(f"No tile for {num_rows} rows of a weight {shape}.")
    return found


def can_split(shape: tuple[int, int], tile: PackedTile, splits: int) -> bool:
    """Whether all blocks run at once, and each has a few stages."""
    enough = tile.steps(shape) >= _FEWEST_STEPS * splits
    return enough and -(-shape[0] // tile.lines) * splits <= places(tile, splits)


def busy_cores(shape: tuple[int, int], tile: PackedTile, splits: int) -> float:
    """The share of all places for blocks that have one, on average until the last is done."""
    blocks = -(-shape[0] // tile.lines) * splits
    return blocks / (-(-blocks // places(tile, splits)) * places(tile, 1))


def places(tile: PackedTile, splits: int) -> int:
    """Of blocks that run at once. A cluster's lie in one part of the GPU, which has pairs of cores:
    where a cluster does not divide a pair's places, some parts have places left."""
    left = 0 if 2 * tile.blocks % splits == 0 else 4 * splits
    return tile.blocks * _CORES - left


def with_stages(kind: PackedKind, rows: int, size: tuple[int, int, int, int]) -> PackedTile:
    """A tile of this `along`, `parts`, `tall` and `blocks`, with as many stages as fit."""
    along, parts, tall, blocks = size
    tile = PackedTile(rows, along, parts, tall, 0, blocks)
    room = _SHARED // blocks - _RESERVED
    return replace(tile, stages=max(2, min(_STAGES, room // kind.stage_bytes(tile))))


@cache
def kernel_of(kind: PackedKind, tile: PackedTile, splits: int, way: Way = "plain") -> CudaKernel:
    """The kernel, which is the same for all shapes."""
    return CudaKernel(
        *("packed.cu", "multiply", kernel_constants(kind, tile, splits, way)),
        threads=32 * tile.along * tile.parts,
        shared=kind.shared_bytes(tile),
        cluster=splits,
        overlaps=True,
    )


def kernel_constants(kind: PackedKind, tile: PackedTile, splits: int, way: Way) -> dict[str, int]:
    """The macros of packed.cu."""
    return {
        "ROWS": tile.rows,
        "WN": tile.along,
        "WK": tile.parts,
        "MT": tile.tall,
        "STAGES": tile.stages,
        "FEWEST": tile.blocks,
        "SPLITS": splits,
        "GROUP": min(kind.group, tile.depth),
        "HALF": int(kind.half),
        "SCALES_HALF": int(kind.scales_half),
        "SECOND": kind.second,
        "ZERO": kind.zero,
        "FP4": int(kind.fp4),
        "NORMED": int(way in ("normed", "gated")),
        "GATED": int(way == "gated"),
        "ADDS": int(way == "adds"),
    }


@cache
def spread_kernel(kind: PackedKind) -> CudaKernel:
    """The kernel that dequantises weights."""
    wanted = kernel_constants(kind, PackedTile(8, 2, 4, 4, 2, 1), 1, "plain")
    return CudaKernel("packed.cu", "spread", wanted, threads=128)


class Shaped(Protocol):
    """The properties of a weight that decide its kernels."""

    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def group(self) -> int: ...
    @property
    def scales(self) -> Tensor: ...
    @property
    def zero(self) -> int: ...
    @property
    def zeros(self) -> Tensor | None: ...
    @property
    def minima(self) -> Tensor | None: ...
    @property
    def is_fp4(self) -> bool: ...


def kind_of(matrix: Shaped, dtype: torch.dtype) -> PackedKind:
    second = 1 if matrix.zeros is not None else 2 if matrix.minima is not None else 0
    return PackedKind(
        matrix.group if matrix.group in SMALL_GROUPS else WIDE_GROUP,
        dtype == torch.float16,
        matrix.scales.dtype == torch.float16,
        second,
        matrix.zero,
        matrix.is_fp4,
    )


def multiply_packed(
    matrix: FragmentMatrix,
    x: Tensor,
    bias: Tensor | None,
    *,
    norm: NormedRows | None = None,
    gated: bool = False,
    added: AddedRows | None = None,
    tile: PackedTile | None = None,
    splits: int = 1,
) -> Tensor:
    """x weight^T + bias; columns of x are in the order of the codes. With `norm`, these sums
    normed; `gated`: silu of the first half of the lines, times the second half; or `added`."""
    way: Way = "adds" if added else "plain" if norm is None else "gated" if gated else "normed"
    kind, (lines, columns) = kind_of(matrix, x.dtype), matrix.shape
    if tile is None:
        tile, splits = packed_tile(kind, x.shape[0], matrix.shape, way)
    x, second = x.contiguous(), matrix.zeros if matrix.minima is None else matrix.minima
    out = added.stream if added else x.new_empty(x.shape[0], lines // 2 if gated else lines)
    more: tuple[Argument, ...] = (None, 0, 0.0, None, None, None)
    if norm is not None:
        more = (norm.squares, norm.squares.shape[1], norm.eps, None, None, None)
    elif added is not None:
        more = (None, 0, 0.0, added.norm, added.scaled, added.squares)
    kernel_of(kind, tile, splits, way)(
        (-(-lines // tile.lines) * splits, -(-x.shape[0] // tile.rows), 1),
        *(matrix.codes, matrix.scales, second, x, bias, out),
        *(x.shape[0], lines, columns, matrix.group, *more),
    )
    return out
