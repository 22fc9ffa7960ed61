"""Products of a mixture's experts with weights in 4-bit codes.

Codes are made plain in registers, in every pass, so that a step of few rows reads a quarter of what
plain weights take, and no pass needs memory for plain ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
from torch import Tensor

from quire.backends.quantised.fragments import (
    BLOCK,
    MAGIC,
    FragmentMatrix,
    fragments,
    has_fragments,
)
from quire.backends.quantised.grouped import GroupedMatrix, stacked
from quire.backends.triton.coded_experts_kernels import multiply_coded_experts, pair_code
from quire.backends.triton.experts import Pairs, Tile
from quire.backends.triton.jit import power_of_two, waiting

_KINDS = {torch.bfloat16: "bf16", torch.float16: "f16"}
# By how many pairs an expert has on average, at most (benchmarks/gpu_experts.py).
_TILES = (
    (8, Tile(16, 128, BLOCK, 4, 4)),
    (24, Tile(32, 128, BLOCK, 4, 4)),
    (96, Tile(64, 128, BLOCK, 4, 4)),
)
_MANY = Tile(128, 128, BLOCK, 8, 3)


@dataclass(frozen=True, slots=True)
class CodedExperts:
    """KeptExperts in codes: those of all experts, one below the other. `dtype`: of activations."""

    codes: FragmentMatrix
    count: int
    dtype: torch.dtype
    biases: Tensor | None = None

    @classmethod
    def of(cls, experts: Sequence[GroupedMatrix], dtype: torch.dtype) -> CodedExperts | None:
        """None if there is no product for these weights, or not in one launch."""
        joined = stacked(experts)
        joined = None if joined is None else joined.narrowed()
        if joined is None or joined.order is not None or not has_fragments(joined, dtype):
            return None
        if experts[0].shape[0] % BLOCK or joined.group % 32:
            return None
        return cls(fragments(joined, dtype), len(experts), dtype)

    @property
    def shape(self) -> tuple[int, int, int]:
        lines, columns = self.codes.shape
        return self.count, lines // self.count, columns

    @property
    def device(self) -> torch.device:
        return self.codes.codes.device

    def tile_for(self, num_pairs: int) -> Tile:
        average = num_pairs / self.count
        return next((tile for most, tile in _TILES if average <= most), _MANY)

    def multiply(self, x: Tensor, pairs: Pairs, tile: Tile, *, per_row: int) -> Tensor:
        codes, (_, outer, inner) = self.codes, self.shape
        out = x.new_empty(pairs.count, outer)
        second = codes.zeros if codes.minima is None else codes.minima
        multiply_coded_experts[(pairs.num_tiles * triton.cdiv(outer, tile.columns),)](
            *(x.contiguous(), codes.codes, codes.scales),
            *(
                codes.scales if second is None else second,
                out if self.biases is None else self.biases,
            ),
            *(pairs.counts, pairs.ordered, out, inner),
            **self.constants(tile, per_row),
        )
        return out

    def constants(self, tile: Tile, per_row: int) -> dict[str, Any]:
        codes, (experts, outer, inner) = self.codes, self.shape
        # Pairs of 16-bit floats: only scales in the dtype of activations lose nothing in it.
        on_gpu = codes.codes.is_cuda
        by_pairs = on_gpu and codes.scales.dtype == self.dtype
        minima = codes.minima is not None
        made = {
            f"CODE_{i}": pair_code(_KINDS[self.dtype], i, fp4=codes.is_fp4, minima=minima)
            if by_pairs
            else ""
            for i in range(4)
        }
        return {
            "PER_ROW": per_row,
            "INNER": inner,
            "OUTER": outer,
            "EXPERTS": experts,
            "LANES": power_of_two(experts),
            "GROUP": codes.group,
            "FP4": codes.is_fp4,
            "SECOND": 1 if codes.zeros is not None else 2 if minima else 0,
            "MAGIC": float(MAGIC[self.dtype]),
            "ZERO": float(codes.zero),
            "LESS": _twice(-(MAGIC[self.dtype] + codes.zero), self.dtype),
            **made,
            "HAS_BIAS": self.biases is not None,
            "ROWS": tile.rows,
            "LINES": tile.columns,
            "WAITS": on_gpu,
            "num_warps": tile.warps,
            "num_stages": tile.stages,
            **waiting(),
        }

    def plain(self, expert: int) -> Tensor:
        blocks = self.shape[1] // BLOCK
        return self.codes.blocks(expert * blocks, (expert + 1) * blocks).dequantised(self.dtype)

    def with_biases(self, biases: Tensor) -> CodedExperts:
        return replace(self, biases=biases)

    def tensors(self) -> tuple[Tensor, ...]:
        return self.codes.tensors()


def _twice(number: float, dtype: torch.dtype) -> int:
    """The bits of two equal 16-bit floats, as a signed number."""
    both = torch.full((2,), number, dtype=dtype)
    return int(both.view(torch.int32))
