"""8-bit matrices: weights of one byte with a scale per output channel, rows rounded to bytes with a
scale per row, exact sums.

Before rounding, each block of input channels is multiplied with a Hadamard matrix, weights once
when they are packed and rows in every product. This spreads the few large activations, which would
otherwise take all the resolution of their row. Sums are of whole numbers, so a row has the same
bits in any batch and by any path, and the number of rows may choose the path.

`native_int8.py` computes this in C; the versions in torch here define it, and are used without a
compiler.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from quire.backends.linear import LinearOp
from quire.errors import UnsupportedModel

BLOCK = 64  # input channels of one Hadamard transform
CHANNELS = 32  # output channels are stored in multiples of it
MAX_DEPTH = 1 << 16  # a sum of so many products of bytes fits into 32 bits


class Int8Arithmetic(Protocol):
    """An implementation that packs and multiplies."""

    def pack(self, matrix: Int8Matrix, rows: Tensor, first: int) -> None:
        """Pack rows (float32 [*, K]) as rows first, first + 1, ... of the matrix."""

    def linear(self, matrix: Int8Matrix, bias: Tensor | None) -> LinearOp:
        """x [T, K] -> x matrix^T + bias [T, N], all float32."""

    def look_up(self, matrix: Int8Matrix, ids: Tensor) -> Tensor:
        """Rows of the matrix as float32 [len(ids), K]."""


@dataclass(frozen=True, slots=True)
class Int8Matrix:
    """A weight [N, K] in bytes; the arithmetic decides their layout in `packed`."""

    shape: tuple[int, int]
    packed: Tensor  # int8 [N rounded up to CHANNELS, depth]
    scales: Tensor  # float32, one per stored channel
    sums: Tensor  # int32: the sum of each channel's bytes
    arithmetic: Int8Arithmetic

    @classmethod
    def empty(cls, shape: tuple[int, int], arithmetic: Int8Arithmetic) -> Int8Matrix:
        """A matrix to be packed row by row; padding channels are 0."""
        stored, depth = -(-shape[0] // CHANNELS) * CHANNELS, -(-shape[1] // BLOCK) * BLOCK
        if depth > MAX_DEPTH:
            raise UnsupportedModel(
                f"a matrix of {shape[0]} x {shape[1]}: 8-bit sums are exact up to {MAX_DEPTH} "
                'input channels. Set quantization="none".'
            )
        packed = torch.zeros(stored, depth, dtype=torch.int8)
        return cls(
            shape, packed, torch.zeros(stored), torch.zeros(stored, dtype=torch.int32), arithmetic
        )

    @classmethod
    def of(cls, weight: Tensor, arithmetic: Int8Arithmetic) -> Int8Matrix:
        """A whole weight [N, K], packed."""
        made = cls.empty((weight.shape[0], weight.shape[1]), arithmetic)
        made.pack(weight.float().contiguous(), 0)
        return made

    @property
    def depth(self) -> int:
        """Input channels, with padding of the last block."""
        return self.packed.shape[1]

    @property
    def device(self) -> torch.device:
        return self.packed.device

    def pack(self, rows: Tensor, first: int) -> None:
        self.arithmetic.pack(self, rows, first)

    def write_rows(self, first: int, rows: Tensor) -> None:
        """Pack rows of any dtype and device; see linear.WeightRows."""
        self.pack(rows.to("cpu", torch.float32).contiguous(), first)

    def read_rows(self, first: int, count: int) -> Tensor:
        return self.look_up(torch.arange(first, first + count))

    def tensors(self) -> tuple[Tensor, ...]:
        return self.packed, self.scales, self.sums

    def linear(self, bias: Tensor | None) -> LinearOp:
        return self.arithmetic.linear(self, bias)

    def look_up(self, ids: Tensor) -> Tensor:
        return self.arithmetic.look_up(self, ids)


def hadamard(x: Tensor) -> Tensor:
    """Multiply each BLOCK of the last dimension with the Hadamard matrix, by sums and differences,
    always in the same order. The matrix is its own inverse up to a factor BLOCK."""
    v = x.reshape(-1, BLOCK)
    apart = BLOCK // 2
    while apart >= 1:
        pairs = v.view(-1, BLOCK // (2 * apart), 2, apart)
        first, second = pairs[:, :, 0], pairs[:, :, 1]
        v = torch.stack([first + second, first - second], 2).view(-1, BLOCK)
        apart //= 2
    return v.view(x.shape)


def rounded(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows as bytes -127 .. 127, and the scale of each row [rows, 1]. A row that is not finite has
    the scale NaN. A row whose numbers are too small for a finite 127 / largest becomes zeros."""
    most = x.abs().amax(-1, keepdim=True)
    # A true division: torch computes 127.0 / most as a reciprocal and a product.
    inverse = torch.full_like(most, 127.0).div_(most)
    inverse.masked_fill_(~inverse.isfinite(), 0.0)
    scale = torch.where(most.isfinite(), most / 127.0, torch.nan)
    scale.masked_fill_((inverse == 0) & most.isfinite(), 0.0)
    return (x * inverse).nan_to_num(0.0, 0.0, 0.0).round_().to(torch.int8), scale


def padded(x: Tensor, depth: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, depth - x.shape[-1]))


class TorchInt8:
    """In torch, whose product of bytes gives exact 32-bit sums. Rows are stored in order."""

    def pack(self, matrix: Int8Matrix, rows: Tensor, first: int) -> None:
        whole, scale = rounded(hadamard(padded(rows, matrix.depth)))
        place = slice(first, first + rows.shape[0])
        matrix.packed[place] = whole
        matrix.scales[place] = scale[:, 0] / BLOCK  # two transforms multiply by BLOCK
        matrix.sums[place] = whole.sum(-1, dtype=torch.int32)

    def linear(self, matrix: Int8Matrix, bias: Tensor | None) -> LinearOp:
        return TorchLinear(matrix, bias)

    def look_up(self, matrix: Int8Matrix, ids: Tensor) -> Tensor:
        back = hadamard(matrix.packed[ids].float())[:, : matrix.shape[1]]
        return back * matrix.scales[ids][:, None]


class TorchLinear:
    """x [T, K] -> [T, N] by torch's product of bytes."""

    def __init__(self, matrix: Int8Matrix, bias: Tensor | None) -> None:
        self.matrix, self.bias = matrix, bias

    def __call__(self, x: Tensor) -> Tensor:
        matrix, channels = self.matrix, self.matrix.shape[0]
        whole, scale = rounded(hadamard(padded(x, matrix.depth)))
        sums = torch._int_mm(whole, matrix.packed.t())[:, :channels]
        made = (sums.float() * scale).mul_(matrix.scales[:channels])
        return made if self.bias is None else made.add_(self.bias)

    def write_rows(self, first: int, rows: Tensor) -> None:
        self.matrix.write_rows(first, rows)

    def read_rows(self, first: int, count: int) -> Tensor:
        return self.matrix.read_rows(first, count)

    def tensors(self) -> tuple[Tensor, ...]:
        return self.matrix.tensors()
