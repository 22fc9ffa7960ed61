"""Linear: a matrix product whose weight the kernels may have packed."""

from __future__ import annotations

from torch import Tensor

from quire.kernels.cpu.int8 import Int8Matrix
from quire.kernels.ops import Kernels

Matrix = Tensor | Int8Matrix


class Linear:
    """x [T, K] -> [T, N]."""

    def __init__(self, kernels: Kernels, weight: Matrix, bias: Tensor | None = None) -> None:
        self.out_features = weight.shape[0]
        if isinstance(weight, Int8Matrix):
            self.multiply = weight.linear(bias)
        else:
            self.multiply = kernels.make_linear(weight, bias)

    def __call__(self, x: Tensor) -> Tensor:
        return self.multiply(x)
