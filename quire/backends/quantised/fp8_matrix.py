"""Fp8Matrix: a weight [N, K] in float8_e4m3, with a scale for each row or for blocks of rows and
columns: weight = code * scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Fp8Matrix:
    """scales[i, j] is for the rows from i * tall and the columns from j * wide on."""

    codes: Tensor  # float8_e4m3fn [N, K]
    scales: Tensor  # float32 [ceil(N / tall), ceil(K / wide)]
    tall: int
    wide: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]

    @property
    def device(self) -> torch.device:
        return self.codes.device

    @property
    def by_row(self) -> bool:
        """Whether the scales are one for each row."""
        return self.tall == 1 and self.scales.shape[1] == 1

    def tensors(self) -> tuple[Tensor, ...]:
        return self.codes, self.scales

    def dequantised(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """[N, K], each weight computed in float32 and rounded once."""
        rows, columns = self.shape
        scales = self._by_rows()[:rows].repeat_interleave(self.wide, 1)[:, :columns]
        return (self.codes.float() * scales).to(dtype)

    def rows(self, first: int, last: int) -> Fp8Matrix:
        if first % self.tall == 0 and (last % self.tall == 0 or last == self.shape[0]):
            cut = self.scales[first // self.tall : -(-last // self.tall)].contiguous()
            return replace(self, codes=self.codes[first:last].contiguous(), scales=cut)
        return self.flattened().rows(first, last)

    def rows_at(self, index: Tensor) -> Fp8Matrix:
        """The rows with these indices, in their order."""
        flat = self.flattened()
        # torch cannot index fp8, so bytes are indexed.
        codes = flat.codes.view(torch.uint8)[index].view(flat.codes.dtype)
        return replace(flat, codes=codes, scales=flat.scales[index])

    def columns(self, first: int, last: int) -> Fp8Matrix:
        columns = self.shape[1]
        codes = self.codes[:, first:last].contiguous()
        if self.scales.shape[1] == 1:
            return replace(self, codes=codes, wide=last - first)
        whole = first % self.wide == 0 and (last % self.wide == 0 or last == columns)
        wide = self.wide if whole else math.gcd(first, last, self.wide)
        scales = self.scales.repeat_interleave(self.wide // wide, 1)
        cut = scales[:, first // wide : -(-last // wide)].contiguous()
        return replace(self, codes=codes, scales=cut, wide=wide)

    def flattened(self) -> Fp8Matrix:
        """The same matrix with separate scales for every row."""
        return replace(self, scales=self._by_rows()[: self.shape[0]].contiguous(), tall=1)

    def to(self, device: torch.device) -> Fp8Matrix:
        return replace(self, codes=self.codes.to(device), scales=self.scales.to(device))

    def _by_rows(self) -> Tensor:
        return self.scales.repeat_interleave(self.tall, 0)


def stacked_fp8(parts: Sequence[Fp8Matrix]) -> Fp8Matrix:
    """Matrices with the same number of columns, stacked."""
    if len(parts) == 1:
        return parts[0]
    wide = min(part.wide for part in parts)
    aligned = all(part.shape[0] % part.tall == 0 for part in parts[:-1])
    if not aligned or len({part.tall for part in parts}) > 1:
        parts = [part.flattened() for part in parts]
    columns = -(-parts[0].shape[1] // wide)
    scales = [p.scales.repeat_interleave(-(-p.wide // wide), 1)[:, :columns] for p in parts]
    codes = torch.cat([part.codes.view(torch.uint8) for part in parts])
    return Fp8Matrix(codes.view(torch.float8_e4m3fn), torch.cat(scales), parts[0].tall, wide)
