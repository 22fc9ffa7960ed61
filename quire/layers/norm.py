"""Norms, alone or joined with the addition to the residual stream that comes before them."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from quire.backends.ops import Kernels


class Norm(Protocol):
    """A norm at any place of a layer: before, after or between its branches."""

    def __call__(self, x: Tensor) -> Tensor: ...

    def after_adding(self, x: Tensor, residual: Tensor) -> Tensor:
        """Add x to `residual` in place, and return the norm of the sum."""
        residual += x
        return self(residual)


class RMSNorm(Norm):
    """RMSNorm over the last dimension, computed in float32 for every dtype of x."""

    def __init__(self, kernels: Kernels, weight: Tensor, eps: float) -> None:
        self.kernels, self.weight, self.eps = kernels, weight, eps

    def __call__(self, x: Tensor) -> Tensor:
        return self.kernels.rms_norm(x, self.weight, self.eps)

    def after_adding(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.kernels.add_rms_norm(x, residual, self.weight, self.eps)

    def with_weight(self, weight: Tensor) -> RMSNorm:
        return RMSNorm(self.kernels, weight.to(self.weight.dtype), self.eps)


class LayerNorm(Norm):
    """LayerNorm over the last dimension, computed in float32 for every dtype of x."""

    def __init__(self, kernels: Kernels, weight: Tensor, bias: Tensor | None, eps: float) -> None:
        self.kernels, self.weight, self.bias, self.eps = kernels, weight, bias, eps

    def __call__(self, x: Tensor) -> Tensor:
        return self.kernels.layer_norm(x, self.weight, self.bias, self.eps)

    def after_adding(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.kernels.add_layer_norm(x, residual, self.weight, self.bias, self.eps)

    def with_weight(self, weight: Tensor) -> LayerNorm:
        return LayerNorm(self.kernels, weight.to(self.weight.dtype), self.bias, self.eps)


class NoNorm(Norm):
    """No norm: for layers that have none before their branches."""

    def __call__(self, x: Tensor) -> Tensor:
        return x


def weighted(scaled: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Apply an RMSNorm's weight to float32 rows that are divided by their root mean square. As in
    `Kernels.rms_norm`: a weight of `dtype` after rounding to it, a weight of float32 before."""
    if weight.dtype == dtype:
        return weight * scaled.to(dtype)
    return (weight * scaled).to(dtype)
