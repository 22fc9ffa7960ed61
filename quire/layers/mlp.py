"""The feed-forward of a layer."""

from __future__ import annotations

from torch import Tensor

from quire.backends.ops import RowOp
from quire.layers.linear import Linear
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


class PlainMLP:
    """down(activation(up(x)))."""

    def __init__(self, activate: RowOp, up: Linear, down: Linear, tp: TensorParallel) -> None:
        self.activate, self.up, self.down, self.tp = activate, up, down, tp

    @property
    def products(self) -> tuple[Linear, Linear]:
        return self.up, self.down

    def __call__(self, x: Tensor) -> Tensor:
        return self.tp.all_reduce(self.down(self.activate(self.up(x))))
