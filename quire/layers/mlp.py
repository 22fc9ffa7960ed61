"""The gated feed-forward."""

from __future__ import annotations

from torch import Tensor

from quire.backends.ops import Kernels
from quire.layers.linear import Linear
from quire.layers.tp import TensorParallel


class GatedMLP:
    """down(silu(gate(x)) * up(x)), with gate and up as one product."""

    def __init__(self, kernels: Kernels, gate_up: Linear, down: Linear, tp: TensorParallel) -> None:
        self.kernels, self.gate_up, self.down, self.tp = kernels, gate_up, down, tp

    def __call__(self, x: Tensor) -> Tensor:
        return self.tp.all_reduce(self.down(self.kernels.silu_mul(self.gate_up(x))))
