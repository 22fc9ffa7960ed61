"""Linear: a matrix product whose weight the kernels may have packed."""

from __future__ import annotations

from torch import Tensor

from quire.kernels.ops import Kernels


class Linear:
    """x [T, K] -> [T, N]."""

    def __init__(self, kernels: Kernels, weight: Tensor, bias: Tensor | None = None) -> None:
        self.out_features = weight.shape[0]
        self.multiply = kernels.make_linear(weight, bias)

    def __call__(self, x: Tensor) -> Tensor:
        return self.multiply(x)
