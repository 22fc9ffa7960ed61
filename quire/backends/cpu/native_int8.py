"""8-bit matrices in C: `int8_*.c` have several paths, and the number of rows chooses one."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from quire.backends.cpu.int8 import BLOCK, Int8Matrix
from quire.backends.cpu.native.header import struct
from quire.backends.linear import LinearOp

# As in quire.h.
PATHS = {
    "plain": 0,
    "avx2": 1,
    "avx-vnni": 2,
    "avx512-vnni": 3,
    "amx": 4,
    "neon-dot": 5,
    "neon-i8mm": 6,
}
ROWS = 96  # scratch rows come in multiples of this: of 32 for AMX, of 6 for Arm
_Product = struct("quire_int8_product")


class Choice(NamedTuple):
    """Products of up to `rows` rows (for the last choice: any number) use `path`."""

    rows: int
    path: str


def paths_here(library: ctypes.CDLL) -> list[str]:
    """The paths that this processor and compiler support, the simplest first."""
    return [name for name, number in PATHS.items() if library.quire_int8_has(number)]


class NativeInt8:
    """Packs weights into panels of 16 channels; multiplies by the path for the number of rows."""

    def __init__(self, library: ctypes.CDLL, choices: Sequence[Choice]) -> None:
        self.library, self.choices = library, tuple(choices)
        self.numbers = [(choice.rows, PATHS[choice.path]) for choice in choices[:-1]]
        self.last = PATHS[choices[-1].path]
        # Rows as bytes; shared by all products of a model, as one is computed at a time.
        self.bytes = torch.empty(0, dtype=torch.uint8)
        self.scales = torch.empty(0)

    def path(self, rows: int) -> int:
        for limit, number in self.numbers:
            if rows <= limit:
                return number
        return self.last

    def room(self, rows: int, depth: int) -> tuple[int, int]:
        """Addresses of memory for so many rows of bytes, and for their scales."""
        rows = -(-rows // ROWS) * ROWS
        if self.bytes.numel() < rows * depth:
            self.bytes = torch.empty(rows * depth, dtype=torch.uint8)
        if self.scales.numel() < rows:
            self.scales = torch.empty(rows)
        return self.bytes.data_ptr(), self.scales.data_ptr()

    def pack(self, matrix: Int8Matrix, rows: Tensor, first: int) -> None:
        self.library.quire_int8_pack(
            rows.data_ptr(),
            rows.shape[0],
            matrix.shape[1],
            matrix.depth,
            BLOCK,
            first,
            matrix.packed.data_ptr(),
            matrix.scales.data_ptr(),
            matrix.sums.data_ptr(),
        )

    def linear(self, matrix: Int8Matrix, bias: Tensor | None) -> LinearOp:
        return NativeLinear(self, matrix, bias)

    def look_up(self, matrix: Int8Matrix, ids: Tensor) -> Tensor:
        ids = ids.to(torch.int64).contiguous()
        out = torch.empty(ids.shape[0], matrix.shape[1])
        self.library.quire_int8_rows(
            ids.data_ptr(),
            ids.shape[0],
            matrix.shape[1],
            matrix.depth,
            BLOCK,
            matrix.packed.data_ptr(),
            matrix.scales.data_ptr(),
            out.data_ptr(),
        )
        return out


class NativeLinear:
    """x [T, K] -> [T, N] in one call of the library."""

    def __init__(self, arithmetic: NativeInt8, matrix: Int8Matrix, bias: Tensor | None) -> None:
        self.arithmetic, self.matrix, self.bias = arithmetic, matrix, bias
        self.multiply = arithmetic.library.quire_int8_linear
        self.channels, self.width = matrix.shape
        self.product = _Product(
            w=matrix.packed.data_ptr(),
            w_scale=matrix.scales.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
            w_sum=matrix.sums.data_ptr(),
            depth=matrix.depth,
            channels=self.channels,
        )

    def __call__(self, x: Tensor) -> Tensor:
        rows, product = x.shape[0], self.product
        y = torch.empty(rows, self.channels)
        product.q, product.q_scale = self.arithmetic.room(rows, self.matrix.depth)
        product.y, product.rows = y.data_ptr(), rows
        path = self.arithmetic.path(rows)
        source = x.data_ptr(), x.stride(0), self.width
        if not self.multiply(*source, BLOCK, path, product):
            raise RuntimeError(f"path {path} of 8-bit products is not there on this processor")
        return y

    def write_rows(self, first: int, rows: Tensor) -> None:
        self.matrix.write_rows(first, rows)

    def read_rows(self, first: int, count: int) -> Tensor:
        return self.matrix.read_rows(first, count)

    def tensors(self) -> tuple[Tensor, ...]:
        return self.matrix.tensors()
