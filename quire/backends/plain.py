"""A product with a plain weight, by torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(slots=True)
class PlainLinear:
    """x weight^T + bias, with plain tensors that other kernels may read."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def write_rows(self, first: int, rows: Tensor) -> None:
        """In place, as captured passes read the weight at its address."""
        self.weight[first : first + len(rows)] = rows

    def read_rows(self, first: int, count: int) -> Tensor:
        return self.weight[first : first + count].to("cpu", torch.float32)

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.weight,)
