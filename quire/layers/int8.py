"""Parts of a layer that leave their arithmetic to the 8-bit product after them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from quire.kernels.cpu.native_int8 import GatedRows, NativeLinear, NormedRows
from quire.layers.linear import Linear
from quire.layers.mlp import GatedMLP
from quire.layers.norm import RMSNorm


def takes_late_rows(linear: Linear) -> bool:
    """Whether a product takes rows that are yet to be normed or gated."""
    return isinstance(linear.multiply, NativeLinear)


class LateNorm(RMSNorm):
    """A norm whose rows the next product, and nobody else, works out."""

    def __init__(self, plain: RMSNorm) -> None:
        super().__init__(plain.kernels, plain.weight, plain.eps)

    def __call__(self, x: Tensor) -> Any:
        # Nothing is added, so x is read only.
        return NormedRows(None, x.contiguous(), self.weight, self.eps)

    def after_adding(self, x: Tensor, residual: Tensor) -> Any:
        return NormedRows(x.contiguous(), residual, self.weight, self.eps)


class LateMLP(GatedMLP):
    """A gated MLP whose last product opens the gates."""

    def __init__(self, plain: GatedMLP) -> None:
        super().__init__(plain.kernels, plain.gate_up, plain.down, plain.tp)

    def __call__(self, x: Tensor) -> Tensor:
        opened: Any = GatedRows(self.gate_up(x))
        return self.tp.all_reduce(self.down(opened))
