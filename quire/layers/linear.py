"""Linear: a matrix product. The kernels may store its weight in a layout of their own."""

from __future__ import annotations

import torch
from torch import Tensor

from quire.backends.linear import LinearOp
from quire.backends.ops import Kernels, PackedMatrix

Matrix = Tensor | PackedMatrix


class PlainRows:
    """A weight that is kept as a plain tensor. Its rows can be replaced in place."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def write_rows(self, first: int, rows: Tensor) -> None:
        self.tensor[first : first + len(rows)] = rows

    def read_rows(self, first: int, count: int) -> Tensor:
        return self.tensor[first : first + count].to("cpu", torch.float32)

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.tensor,)


class Linear:
    """x [T, K] -> [T, N]. `packed` is the weight where that is not a plain tensor, else None."""

    def __init__(self, kernels: Kernels, weight: Matrix, bias: Tensor | None = None) -> None:
        self.out_features, self.bias = weight.shape[0], bias
        self.multiply: LinearOp
        self.packed: PackedMatrix | None = None
        if isinstance(weight, Tensor):
            self.multiply = kernels.make_linear(weight, bias)
        else:
            self.multiply, self.packed = weight.linear(bias), weight

    def __call__(self, x: Tensor) -> Tensor:
        return self.multiply(x)

    def write_rows(self, first: int, rows: Tensor) -> None:
        """Overwrite the rows first, first + 1, ... of the weight."""
        self.multiply.write_rows(first, rows)

    def read_rows(self, first: int, count: int) -> Tensor:
        return self.multiply.read_rows(first, count)

    def tensors(self) -> tuple[Tensor, ...]:
        return self.multiply.tensors()
