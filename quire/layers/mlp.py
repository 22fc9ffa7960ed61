"""The feed-forward of a layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.backends.ops import RowOp
from quire.layer_plan import SparsePlan
from quire.layers.linear import Linear
from quire.layers.sums import in_halves
from quire.layers.tp import TensorParallel


class GatedMLP:
    """down(activation(gate(x)) * up(x)). `gate_up` multiplies with the weights of gate and up in
    one product; `opened` computes that product and activation(gate) * up."""

    def __init__(self, opened: RowOp, gate_up: Linear, down: Linear, tp: TensorParallel) -> None:
        self.opened, self.gate_up, self.down, self.tp = opened, gate_up, down, tp

    @property
    def products(self) -> tuple[Linear, Linear]:
        return self.gate_up, self.down

    def __call__(self, x: Tensor) -> Tensor:
        return self.tp.all_reduce(self.down(self.opened(x)))


@dataclass(frozen=True, slots=True)
class Cutoff:
    """Gates below a token's cutoff become 0, and others lose it (layer_plan.SparsePlan)."""

    plan: SparsePlan
    tp: TensorParallel

    def apply(self, gates: Tensor) -> None:
        """Change gates [T, width], a rank's part of them."""
        wide = gates.float()
        mean = self._mean(wide)
        deviation = self._mean((wide - mean).square_()).sqrt_()
        gates.copy_((wide - (mean + self.plan.deviations * deviation)).relu_())

    def _mean(self, wide: Tensor) -> Tensor:
        """Over all ranks [T, 1]."""
        return self.tp.all_reduce(in_halves(wide)) / self.plan.width


class LearnedCurve:
    """The activation xIELU, computed in float32: with the numbers p, n, b and e, and with
    P = softplus(p) and N = b + softplus(n), it is P x^2 + b x for x > 0, and otherwise
    N (exp(min(x, e)) - 1 - x) + b x."""

    def __init__(self, numbers: Tensor) -> None:
        """`numbers`: [4], float32."""
        self.numbers = numbers

    def __call__(self, x: Tensor) -> Tensor:
        rising, falling, slope, last = self.numbers
        wide = x.float()
        above = F.softplus(rising) * wide * wide
        below = (slope + F.softplus(falling)) * (torch.expm1(torch.minimum(wide, last)) - wide)
        made: Tensor = torch.where(wide > 0, above, below) + slope * wide
        return made.to(x.dtype)


class PlainMLP:
    """down(activation(up(x)))."""

    def __init__(self, activate: RowOp, up: Linear, down: Linear, tp: TensorParallel) -> None:
        self.activate, self.up, self.down, self.tp = activate, up, down, tp

    @property
    def products(self) -> tuple[Linear, Linear]:
        return self.up, self.down

    def __call__(self, x: Tensor) -> Tensor:
        return self.tp.all_reduce(self.down(self.activate(self.up(x))))
