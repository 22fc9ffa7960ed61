"""RMSNorm, alone or with the addition to the residual stream that comes before it."""

from __future__ import annotations

from torch import Tensor

from quire.backends.ops import Kernels


class RMSNorm:
    """Over the last dimension, in fp32 whatever x is."""

    def __init__(self, kernels: Kernels, weight: Tensor, eps: float) -> None:
        self.kernels, self.weight, self.eps = kernels, weight, eps

    def __call__(self, x: Tensor) -> Tensor:
        return self.kernels.rms_norm(x, self.weight, self.eps)

    def after_adding(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual += x in place, then the norm of it."""
        return self.kernels.add_rms_norm(x, residual, self.weight, self.eps)
