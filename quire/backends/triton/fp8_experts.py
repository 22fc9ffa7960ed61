"""Products of a mixture's experts in fp8: activations are rounded, too, as in fp8_product.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
from torch import Tensor

from quire.backends.quantised.fp8_matrix import Fp8Matrix, stacked_fp8
from quire.backends.triton.experts import Pairs, Tile
from quire.backends.triton.fp8_product import depth_of, rounded
from quire.backends.triton.fp8_product_kernels import multiply_fp8_experts
from quire.backends.triton.jit import power_of_two, waiting

# By how many pairs an expert has on average, at most (benchmarks/gpu_experts.py). A product in fp8
# is as deep as its scales are wide.
_TILES = (
    (12, Tile(16, 64, 64, 4, 4)),
    (24, Tile(32, 64, 64, 4, 4)),
)
_MANY = Tile(64, 128, 64, 4, 4)
_MANY_SCALES = Tile(64, 64, 64, 4, 3)  # where each line of a tile has a scale in every step
_LEAST_DEPTH = 32  # of a product in fp8


@dataclass(frozen=True, slots=True)
class Fp8Experts:
    """KeptExperts in fp8: those of all experts, one below the other."""

    matrix: Fp8Matrix
    count: int
    dtype: torch.dtype
    biases: Tensor | None = None

    @classmethod
    def of(cls, experts: Sequence[Fp8Matrix], dtype: torch.dtype) -> Fp8Experts | None:
        """None if a scale is for so few columns that there is no product."""
        matrix = stacked_fp8(experts)
        return None if depth_of(matrix) < _LEAST_DEPTH else cls(matrix, len(experts), dtype)

    @property
    def shape(self) -> tuple[int, int, int]:
        lines, columns = self.matrix.shape
        return self.count, lines // self.count, columns

    @property
    def device(self) -> torch.device:
        return self.matrix.device

    def tile_for(self, num_pairs: int) -> Tile:
        average = num_pairs / self.count
        once = self.matrix.scales.shape[1] == 1
        many = _MANY if once or self._have_one_scale(_MANY.columns) else _MANY_SCALES
        return next((tile for most, tile in _TILES if average <= most), many)

    def _have_one_scale(self, lines: int) -> bool:
        """Whether so many lines, from a multiple of that in an expert on, share their scales."""
        return self.matrix.tall % lines == 0 and self.shape[1] % self.matrix.tall == 0

    def multiply(self, x: Tensor, pairs: Pairs, tile: Tile, *, per_row: int) -> Tensor:
        matrix, (_, outer, _) = self.matrix, self.shape
        codes, scales = rounded(x, matrix)
        out = x.new_empty(pairs.count, outer)
        constants = self.constants(tile, per_row)
        grid = (pairs.num_tiles * triton.cdiv(outer, tile.columns),)
        multiply_fp8_experts[grid](
            *(codes, scales, matrix.codes, matrix.scales),
            *(out if self.biases is None else self.biases, pairs.counts, pairs.ordered, out),
            triton.cdiv(matrix.shape[1], constants["DEPTH"]),
            **constants,
        )
        return out

    def constants(self, tile: Tile, per_row: int) -> dict[str, Any]:
        matrix, (experts, outer, inner) = self.matrix, self.shape
        return {
            "PER_ROW": per_row,
            "INNER": inner,
            "OUTER": outer,
            "EXPERTS": experts,
            "LANES": power_of_two(experts),
            "TALL": matrix.tall,
            "WIDE": matrix.wide,
            "HAS_BIAS": self.biases is not None,
            "ROWS": tile.rows,
            "LINES": tile.columns,
            "DEPTH": depth_of(matrix),
            "ONE_SCALE": self._have_one_scale(tile.columns),
            "num_warps": tile.warps,
            "num_stages": tile.stages,
            **waiting(),
        }

    def plain(self, expert: int) -> Tensor:
        lines = self.shape[1]
        return self.matrix.rows(expert * lines, (expert + 1) * lines).dequantised(self.dtype)

    def with_biases(self, biases: Tensor) -> Fp8Experts:
        return replace(self, biases=biases)

    def tensors(self) -> tuple[Tensor, ...]:
        return self.matrix.tensors()
