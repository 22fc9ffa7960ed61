"""Products with a GroupedMatrix on a GPU.

With up to MOST_FUSED rows, one kernel reads the codes and multiplies. With more rows, the weight is
first dequantised, into memory that all weights of a model share, and the vendor's library
multiplies. Both ways round the weights to the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.backends.linear import KeptQuantised
from quire.backends.quantised.grouped import SIGNED_ZERO, GroupedMatrix, block_columns
from quire.backends.triton.grouped_kernels import (
    CENTRE,
    dequantise_grouped,
    multiply_grouped,
    sum_groups,
)
from quire.backends.triton.jit import precision
from quire.errors import NotSupported

MOST_FUSED = 64
MOST_SPLITS = 8
_CORES = 132


@dataclass(frozen=True, slots=True)
class GroupedTile:
    """`lines` of the weight by `rows`, `depth` of the sum at a time, in `splits` parts."""

    rows: int
    lines: int
    depth: int
    splits: int
    warps: int
    stages: int


class Scratch:
    """Memory that the products of a model share: they are computed one after the other."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.plain = torch.empty(0, dtype=dtype, device=device)
        self.parts = torch.empty(0, dtype=torch.float32, device=device)
        self.arrived = torch.zeros(0, dtype=torch.int32, device=device)

    def reserve(self, *, plain: int = 0, parts: int = 0, tiles: int = 0) -> None:
        """Reserve memory for so many plain weights, partial sums and tiles. Called while building,
        so that captured passes find it at the same address."""
        if plain > self.plain.numel():
            self.plain = torch.empty(plain, dtype=self.plain.dtype, device=self.plain.device)
        if parts > self.parts.numel():
            self.parts = torch.empty(parts, dtype=torch.float32, device=self.plain.device)
        if tiles > self.arrived.numel():
            self.arrived = torch.zeros(tiles, dtype=torch.int32, device=self.plain.device)

    def tensors(self) -> tuple[Tensor, ...]:
        return self.plain, self.parts, self.arrived


def grouped_tile(matrix: GroupedMatrix, num_rows: int) -> GroupedTile:
    """The tile: so many lines and splits that every core has a few programs."""
    lines, columns = matrix.shape
    rows = next((one for one in (16, 32, 64) if num_rows <= one), 64)
    depth = _depth(matrix)
    tall, warps = (128, 8) if lines >= 128 else (64, 4)
    tiles = -(-lines // tall) * -(-num_rows // rows)
    most = max(1, columns // depth // 4)
    splits = max(1, min(MOST_SPLITS, most, round(2 * _CORES / tiles)))
    return GroupedTile(rows, tall, depth, splits, warps, 3)


class GroupedLinear(KeptQuantised):
    """x weight^T + bias"""

    def __init__(
        self,
        matrix: GroupedMatrix,
        bias: Tensor | None,
        scratch: Scratch,
        tile: GroupedTile | None = None,
    ) -> None:
        if matrix.minima is not None and matrix.zeros is not None:
            raise NotSupported("a weight with zero points and minima.")
        if matrix.table is not None and matrix.bits == 8:
            raise NotSupported("a table of codes whose columns are no multiple of 64.")
        self.matrix, self.bias, self.scratch = matrix.narrowed(), bias, scratch
        self._tile = tile
        lines, columns = matrix.shape
        scratch.reserve(
            plain=lines * columns, parts=MOST_SPLITS * MOST_FUSED * lines, tiles=lines // 4 + 4
        )

    def __call__(self, x: Tensor) -> Tensor:
        if self.matrix.order is not None:
            x = x.index_select(1, self.matrix.order)
        if x.shape[0] > MOST_FUSED:
            return F.linear(x, self.plain(), self.bias)
        return self.fused(x)

    def fused(self, x: Tensor) -> Tensor:
        matrix, scratch, bias = self.matrix, self.scratch, self.bias
        x, num_rows, lines = x.contiguous(), x.shape[0], matrix.shape[0]
        tile = self._tile or grouped_tile(matrix, num_rows)
        out = x.new_empty(num_rows, lines)
        grid = (-(-lines // tile.lines), tile.splits, -(-num_rows // tile.rows))
        unit = min(tile.depth, matrix.group)
        sums = self._sums(x, unit) if _needs_sums(matrix) else scratch.parts
        multiply_grouped[grid](
            *(x, *_arguments(matrix), sums, out if bias is None else bias, out, scratch.parts),
            *(scratch.arrived, num_rows),
            HAS_BIAS=bias is not None,
            ROWS=tile.rows,
            LINES=tile.lines,
            DEPTH=tile.depth,
            SPLITS=tile.splits,
            BY_PAIRS=x.is_cuda and x.dtype.itemsize == 2,
            PRECISION=precision(x.dtype),
            num_warps=tile.warps,
            num_stages=tile.stages,
            **_constants(matrix),
        )
        return out

    def _sums(self, x: Tensor, depth: int) -> Tensor:
        """The sums of x for each step of the product."""
        num_rows, columns = x.shape
        sums = torch.empty(num_rows, columns // depth, dtype=torch.float32, device=x.device)
        at_once = max(1, 1024 // depth)
        sum_groups[(num_rows, -(-columns // depth // at_once))](
            x, sums, INNER=columns, DEPTH=depth, GROUPS=at_once, num_warps=4
        )
        return sums

    def plain(self) -> Tensor:
        """The weight [N, K], its columns in the order of the codes."""
        matrix = self.matrix
        lines, columns = matrix.shape
        out = self.scratch.plain[: lines * columns].view(lines, columns)
        depth = _depth(matrix)
        dequantise_grouped[(-(-lines // 16), columns // depth)](
            *(*_arguments(matrix), out),
            LINES=16,
            DEPTH=depth,
            num_warps=4,
            **_constants(matrix),
        )
        return out

    def tensors(self) -> tuple[Tensor, ...]:
        return *self.matrix.tensors(), *self.scratch.tensors()


def _depth(matrix: GroupedMatrix) -> int:
    """The depth of a step: whole blocks of a group, or one block whose halves are groups."""
    block = block_columns(matrix.bits)
    if 2 * matrix.group == block:
        return block
    found = next((d for d in (128, 64, 32) if matrix.group % d == 0 and d >= block), 0)
    if not found:
        raise NotSupported(
            f"groups of {matrix.group} columns of {matrix.bits} bits: products on a GPU take "
            f"multiples of {block // 2}. Use quantization='none'."
        )
    return found


def _needs_sums(matrix: GroupedMatrix) -> bool:
    """Whether the zero point of the codes differs from the one in the product."""
    less = CENTRE if matrix.bits == 4 else SIGNED_ZERO
    less = 0 if matrix.table is not None else less
    return matrix.zeros is not None or matrix.minima is not None or matrix.zero != less


def _arguments(matrix: GroupedMatrix) -> tuple[Tensor, ...]:
    """The arguments of kernels; missing tensors are not read."""
    others = matrix.zeros if matrix.minima is None else matrix.minima
    given = (matrix.codes, matrix.scales, others, matrix.table)
    return tuple(matrix.codes if one is None else one for one in given)


def _constants(matrix: GroupedMatrix) -> dict[str, Any]:
    lines, columns = matrix.shape
    second = "none" if matrix.zeros is None else "zeros"
    return {
        "INNER": columns,
        "OUTER": lines,
        "GROUP": matrix.group,
        "BITS": matrix.bits,
        "ZERO": matrix.zero,
        "SECOND": second if matrix.minima is None else "minima",
        "HAS_TABLE": matrix.table is not None,
    }
