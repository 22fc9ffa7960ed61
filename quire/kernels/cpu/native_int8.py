"""8-bit matrices in C: `gemm_int8.c` has the paths, the number of rows chooses among them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from quire.kernels.cpu.int8 import BLOCK, Int8Matrix
from quire.kernels.ops import LinearOp

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
ROWS = 32  # rows of scratch come in multiples of it

_WORD, _POINTER = ctypes.c_int64, ctypes.c_void_p


class Product(ctypes.Structure):
    """struct quire_int8_product"""

    _fields_ = [
        ("q", _POINTER),
        ("q_scale", _POINTER),
        ("w", _POINTER),
        ("w_scale", _POINTER),
        ("bias", _POINTER),
        ("w_sum", _POINTER),
        ("y", _POINTER),
        ("rows", _WORD),
        ("depth", _WORD),
        ("channels", _WORD),
    ]


class Source(ctypes.Structure):
    """struct quire_int8_source"""

    _fields_ = [
        ("kind", _WORD),
        ("x", _POINTER),
        ("stride", _WORD),
        ("residual", _POINTER),
        ("weight", _POINTER),
        ("eps", ctypes.c_float),
    ]


GIVEN, NORMED, GATED = range(3)


@dataclass(frozen=True, slots=True)
class NormedRows:
    """The norm of residual += added, for one product that works it out while it rounds rows; the
    residual is written to then. All are contiguous, in float32."""

    added: Tensor | None
    residual: Tensor
    weight: Tensor
    eps: float

    @property
    def shape(self) -> torch.Size:
        return self.residual.shape

    def describe(self, source: Source) -> None:
        source.kind, source.eps = NORMED, self.eps
        source.x = None if self.added is None else self.added.data_ptr()
        source.stride = self.shape[1]
        source.residual, source.weight = self.residual.data_ptr(), self.weight.data_ptr()


@dataclass(frozen=True, slots=True)
class GatedRows:
    """silu(gate) * up of gate_up [T, 2 I], for one product likewise."""

    gate_up: Tensor

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.gate_up.shape[0], self.gate_up.shape[1] // 2))

    def describe(self, source: Source) -> None:
        source.kind, source.x = GATED, self.gate_up.data_ptr()
        source.stride = self.gate_up.stride(0)


class Choice(NamedTuple):
    """Products of up to `rows` rows (the last one: of any number) go by `path`."""

    rows: int
    path: str


def declare(library: ctypes.CDLL) -> None:
    """Tell ctypes what goes into the functions of gemm_int8.c."""
    library.quire_int8_has.argtypes = [_WORD]
    library.quire_int8_has.restype = _WORD
    library.quire_int8_linear.argtypes = [_POINTER, _WORD, _WORD, _WORD, _POINTER]
    library.quire_int8_linear.restype = _WORD
    library.quire_int8_pack.argtypes = [_POINTER, *[_WORD] * 5, *[_POINTER] * 3]
    library.quire_int8_pack.restype = None
    library.quire_int8_rows.argtypes = [_POINTER, *[_WORD] * 4, *[_POINTER] * 3]
    library.quire_int8_rows.restype = None


def paths_here(library: ctypes.CDLL) -> list[str]:
    """The paths that this processor and compiler have, the plainest first."""
    declare(library)
    return [name for name, number in PATHS.items() if library.quire_int8_has(number)]


class NativeInt8:
    """Packs into panels of 16 channels and multiplies by the path chosen for the rows."""

    def __init__(self, library: ctypes.CDLL, choices: Sequence[Choice]) -> None:
        declare(library)
        self.library, self.choices = library, tuple(choices)
        self.numbers = [(choice.rows, PATHS[choice.path]) for choice in choices[:-1]]
        self.last = PATHS[choices[-1].path]
        # Rows as bytes, used again by every product of a model: one is computed at a time.
        self.bytes = torch.empty(0, dtype=torch.uint8)
        self.scales = torch.empty(0)

    def path(self, rows: int) -> int:
        for limit, number in self.numbers:
            if rows <= limit:
                return number
        return self.last

    def room(self, rows: int, depth: int) -> tuple[int, int]:
        """Addresses of room for so many rows of bytes, and of their scales."""
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
    """x [T, K] -> [T, N] in one call."""

    def __init__(self, arithmetic: NativeInt8, matrix: Int8Matrix, bias: Tensor | None) -> None:
        self.arithmetic, self.matrix, self.bias = arithmetic, matrix, bias
        self.multiply = arithmetic.library.quire_int8_linear
        self.channels, self.width = matrix.shape
        self.product = Product(
            w=matrix.packed.data_ptr(),
            w_scale=matrix.scales.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
            w_sum=matrix.sums.data_ptr(),
            depth=matrix.depth,
            channels=self.channels,
        )
        self.source = Source()
        self.address = ctypes.addressof(self.product)

    def __call__(self, x: Tensor | NormedRows | GatedRows) -> Tensor:
        rows, product, source = x.shape[0], self.product, self.source
        if isinstance(x, Tensor):
            source.kind, source.x, source.stride = GIVEN, x.data_ptr(), x.stride(0)
        else:
            x.describe(source)
        y = torch.empty(rows, self.channels)
        product.q, product.q_scale = self.arithmetic.room(rows, self.matrix.depth)
        product.y, product.rows = y.data_ptr(), rows
        path = self.arithmetic.path(rows)
        if not self.multiply(ctypes.addressof(source), self.width, BLOCK, path, self.address):
            raise RuntimeError(f"path {path} of 8-bit products is not there on this processor")
        return y
