"""Products with an Fp8Matrix on a GPU: activations are rounded to fp8 as well, each row (or each
run of columns with one scale of the weight) by its own largest number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.backends.fp8 import FP8
from quire.backends.linear import KeptQuantised
from quire.backends.quantised.fp8_matrix import Fp8Matrix
from quire.backends.triton.fp8_product_kernels import multiply_fp8, round_rows
from quire.backends.triton.grouped import Scratch
from quire.backends.triton.jit import power_of_two

MOST_FEW = 64
_CORES = 132
_ROUNDED = 2048  # numbers that a program rounds, or a whole group


@dataclass(frozen=True, slots=True)
class Fp8Tile:
    rows: int
    lines: int
    depth: int
    splits: int
    warps: int
    stages: int


def fp8_tile(matrix: Fp8Matrix, num_rows: int) -> Fp8Tile:
    lines, columns = matrix.shape
    depth = depth_of(matrix)
    if num_rows > MOST_FEW:
        return Fp8Tile(128, 128, depth, 1, 8, 3)
    rows = next(one for one in (16, 32, 64) if num_rows <= one)
    tiles = -(-lines // 64)
    most = max(1, columns // depth // 8)
    splits = max(1, min(8, most, round(2 * _CORES / tiles)))
    return Fp8Tile(rows, 64, depth, splits, 4, 4)


def rounded(x: Tensor, weight: Fp8Matrix, scales: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """x in fp8 [T, K], and its scales float32 [T, groups of the weight], where that is given for
    more rows than x has: others are zeros."""
    x, groups = x.contiguous(), weight.scales.shape[1]
    if scales is None:
        scales = torch.empty(len(x), groups, dtype=torch.float32, device=x.device)
    num_rows, columns = len(scales), x.shape[1]
    codes = torch.empty(num_rows, columns, dtype=FP8, device=x.device)
    size = min(weight.wide, columns)
    block = power_of_two(size)
    at_once = max(1, min(power_of_two(groups), _ROUNDED // block))
    round_rows[(num_rows, -(-groups // at_once))](
        *(x, codes, scales, len(x), *scales.stride()),
        WIDTH=columns,
        SIZE=size,
        GROUPS=at_once,
        BLOCK=block,
        num_warps=min(16, max(1, at_once * block // 512)),
    )
    return codes, scales


def depth_of(matrix: Fp8Matrix) -> int:
    """The columns of a step. Of one group for all columns those behind the last are left out; else
    a step is within one."""
    whole = matrix.scales.shape[1] == 1
    return min(128, power_of_two(matrix.shape[1]) if whole else matrix.wide & -matrix.wide)


class Fp8Linear(KeptQuantised):
    """x weight^T + bias"""

    def __init__(
        self, matrix: Fp8Matrix, bias: Tensor | None, scratch: Scratch, tile: Fp8Tile | None = None
    ) -> None:
        if matrix.scales.shape[1] == 1:
            matrix = matrix.flattened()  # one scale for all is one for each row
        self.matrix, self.bias, self.scratch, self._tile = matrix, bias, scratch, tile
        lines, columns = matrix.shape
        self._library: Callable[[Tensor], Tensor] | None = None
        if matrix.by_row and lines % 16 == 0 and columns % 16 == 0 and matrix.codes.is_cuda:
            self._library = self._by_rows
        elif _library_has_blocks(matrix):
            self._library = self._by_blocks
        scratch.reserve(parts=8 * MOST_FEW * lines, tiles=-(-lines // 16) * 4)

    def __call__(self, x: Tensor) -> Tensor:
        if len(x) <= MOST_FEW or x.dtype != torch.bfloat16 or self._library is None:
            return self.multiply(*self.rounded(x), x.dtype)
        return self._library(x)

    def _by_rows(self, x: Tensor) -> Tensor:
        matrix, (codes, scales) = self.matrix, self.rounded(x)
        return torch._scaled_mm(
            codes,
            matrix.codes.t(),
            scales,
            matrix.scales.t(),
            bias=self.bias,
            out_dtype=x.dtype,
            use_fast_accum=False,  # hardly faster, and sums then have 14 bits
        )

    def _by_blocks(self, x: Tensor) -> Tensor:
        """With the rows padded to a multiple of 4, as the library needs. The scales of a block of
        columns are contiguous, for rows as for the weight."""
        from torch.nn.functional import ScalingType, scaled_mm

        num_rows, groups = -(-len(x) // 4) * 4, self.matrix.scales.shape[1]
        scales = torch.empty(groups, num_rows, dtype=torch.float32, device=x.device).t()
        codes, scales = self.rounded(x, scales)
        made = scaled_mm(
            codes,
            self.matrix.codes.t(),
            scales,
            ScalingType.BlockWise1x128,
            self.matrix.scales.t(),
            ScalingType.BlockWise128x128,
            output_dtype=x.dtype,
        )[: len(x)]
        return made if self.bias is None else made.add_(self.bias)

    def rounded(self, x: Tensor, scales: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return rounded(x, self.matrix, scales)

    def multiply(self, codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
        matrix, scratch, bias, num_rows = self.matrix, self.scratch, self.bias, codes.shape[0]
        lines, columns = matrix.shape
        tile = self._tile or fp8_tile(matrix, num_rows)
        out = torch.empty(num_rows, lines, dtype=dtype, device=codes.device)
        grid = (-(-lines // tile.lines), tile.splits, -(-num_rows // tile.rows))
        multiply_fp8[grid](
            *(codes, scales, matrix.codes, matrix.scales, out if bias is None else bias, out),
            *(scratch.parts, scratch.arrived, num_rows),
            INNER=columns,
            OUTER=lines,
            TALL=matrix.tall,
            WIDE=matrix.wide,
            HAS_BIAS=bias is not None,
            ROWS=tile.rows,
            LINES=tile.lines,
            DEPTH=tile.depth,
            SPLITS=tile.splits,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
        return out

    def tensors(self) -> tuple[Tensor, ...]:
        return *self.matrix.tensors(), *self.scratch.tensors()


def _library_has_blocks(matrix: Fp8Matrix) -> bool:
    """Whether the vendor's library supports blocks of 128: only on Hopper, and only whole blocks.
    For others its results are silently wrong."""
    lines, columns = matrix.shape
    if (matrix.tall, matrix.wide) != (128, 128) or lines % 128 or columns % 512:
        return False
    new_enough = hasattr(torch.nn.functional, "scaled_mm")
    return matrix.codes.is_cuda and torch.cuda.get_device_capability() == (9, 0) and new_enough
