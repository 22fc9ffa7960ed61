"""Norms, alone or with the addition to the residual stream that comes before them."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from quire.backends.ops import Kernels


class Norm(Protocol):
    """What stands before, behind or between the branches of layers."""

    def __call__(self, x: Tensor) -> Tensor: ...

    def after_adding(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual += x in place, then the norm of it."""
        residual += x
        return self(residual)


class RMSNorm(Norm):
    """Over the last dimension, in fp32 whatever x is."""

    def __init__(self, kernels: Kernels, weight: Tensor, eps: float) -> None:
        self.kernels, self.weight, self.eps = kernels, weight, eps

    def __call__(self, x: Tensor) -> Tensor:
        return self.kernels.rms_norm(x, self.weight, self.eps)

    def after_adding(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.kernels.add_rms_norm(x, residual, self.weight, self.eps)

    def with_weight(self, weight: Tensor) -> RMSNorm:
        return RMSNorm(self.kernels, weight.to(self.weight.dtype), self.eps)


class LayerNorm(Norm):
    """The same by mean and variance."""

    def __init__(self, kernels: Kernels, weight: Tensor, bias: Tensor | None, eps: float) -> None:
        self.kernels, self.weight, self.bias, self.eps = kernels, weight, bias, eps

    def __call__(self, x: Tensor) -> Tensor:
        return self.kernels.layer_norm(x, self.weight, self.bias, self.eps)

    def after_adding(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.kernels.add_layer_norm(x, residual, self.weight, self.bias, self.eps)

    def with_weight(self, weight: Tensor) -> LayerNorm:
        return LayerNorm(self.kernels, weight.to(self.weight.dtype), self.bias, self.eps)


class NoNorm(Norm):
    """The stream as it is, for layers that have no norm before their branches."""

    def __call__(self, x: Tensor) -> Tensor:
        return x


def weighted(scaled: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """The weight of an RMSNorm applied to what was scaled elsewhere, in fp32, as kernels do it:
    after rounding where the weight is of that type, too."""
    if weight.dtype == dtype:
        return weight * scaled.to(dtype)
    return (weight * scaled).to(dtype)
