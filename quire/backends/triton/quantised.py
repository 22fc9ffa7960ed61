"""Weights that stay quantised on a GPU, in the form from which a model is built."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quire.backends.linear import LinearOp
from quire.backends.quantised.fp8_matrix import Fp8Matrix
from quire.backends.quantised.grouped import GroupedMatrix
from quire.backends.triton.fp8_product import Fp8Linear
from quire.backends.triton.grouped import GroupedLinear, Scratch


@dataclass(frozen=True, slots=True)
class DeviceMatrix:
    """A quantised weight [N, K], and the scratch memory that it shares with the model's others."""

    matrix: GroupedMatrix | Fp8Matrix
    scratch: Scratch

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape

    @property
    def device(self) -> torch.device:
        return self.matrix.device

    def linear(self, bias: Tensor | None) -> LinearOp:
        if isinstance(self.matrix, Fp8Matrix):
            return Fp8Linear(self.matrix, bias, self.scratch)
        return GroupedLinear(self.matrix, bias, self.scratch)
