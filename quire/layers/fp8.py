"""Parts of a layer that hand their results on in fp8, rounded by the kernel that made them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from quire.backends.triton.fp8 import Fp8Linear, rms_norm_rounded, silu_mul_rounded
from quire.layers.linear import Linear
from quire.layers.mlp import GatedMLP
from quire.layers.norm import RMSNorm


def takes_fp8(linear: Linear) -> bool:
    """Whether a product is one in fp8: it takes Fp8Rows as well as a Tensor."""
    return isinstance(linear.multiply, Fp8Linear)


class RoundingNorm(RMSNorm):
    """A norm before a product in fp8. What it returns are Fp8Rows, for that product alone."""

    def __init__(self, plain: RMSNorm) -> None:
        super().__init__(plain.kernels, plain.weight, plain.eps)

    def __call__(self, x: Tensor) -> Any:
        return rms_norm_rounded(x, None, self.weight, self.eps)

    def after_adding(self, x: Tensor, residual: Tensor) -> Any:
        return rms_norm_rounded(x, residual, self.weight, self.eps)


class RoundingMLP(GatedMLP):
    """A gated MLP whose last product is one in fp8."""

    def __init__(self, plain: GatedMLP) -> None:
        super().__init__(plain.gate, plain.gate_up, plain.down, plain.tp)

    def __call__(self, x: Tensor) -> Tensor:
        opened: Any = silu_mul_rounded(self.gate_up(x))
        return self.tp.all_reduce(self.down(opened))
