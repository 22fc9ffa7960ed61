"""The feed-forward of a layer."""

from __future__ import annotations

from torch import Tensor

from quire.backends.ops import RowOp
from quire.layers.linear import Linear
from quire.layers.tp import TensorParallel


class GatedMLP:
    """down(activation(gate(x)) * up(x)), with gate and up as one product."""

    def __init__(self, gate: RowOp, gate_up: Linear, down: Linear, tp: TensorParallel) -> None:
        self.gate, self.gate_up, self.down, self.tp = gate, gate_up, down, tp

    @property
    def products(self) -> tuple[Linear, Linear]:
        return self.gate_up, self.down

    def __call__(self, x: Tensor) -> Tensor:
        return self.tp.all_reduce(self.down(self.gate(self.gate_up(x))))


class PlainMLP:
    """down(activation(up(x)))."""

    def __init__(self, activate: RowOp, up: Linear, down: Linear, tp: TensorParallel) -> None:
        self.activate, self.up, self.down, self.tp = activate, up, down, tp

    @property
    def products(self) -> tuple[Linear, Linear]:
        return self.up, self.down

    def __call__(self, x: Tensor) -> Tensor:
        return self.tp.all_reduce(self.down(self.activate(self.up(x))))
