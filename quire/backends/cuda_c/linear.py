"""Products with 4-bit codes, for few rows and for many."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.backends.cuda_c.few_rows import Way
from quire.backends.cuda_c.packed import (
    MOST_ROWS,
    PackedKind,
    PackedTile,
    Shaped,
    kernel_of,
    kind_of,
    multiply_packed,
    packed_tile,
    spread_kernel,
)
from quire.backends.linear import KeptQuantised, LinearOp
from quire.backends.plain import PlainLinear
from quire.backends.quantised.fragments import FragmentMatrix, fragments, has_fragments
from quire.backends.quantised.grouped import GroupedMatrix

_LEAST = (9, 0)  # clusters of blocks, and programmatic dependent launch
_THREADS = 8


class PlainRoom(Protocol):
    """Memory into which a weight is dequantised."""

    plain: Tensor

    def reserve(self, *, plain: int = 0) -> None: ...

    def tensors(self) -> tuple[Tensor, ...]: ...


@dataclass(frozen=True, slots=True)
class CodesMatrix:
    """A weight [N, K] in the layout of packed.cu. Passes of more than MOST_ROWS rows use the plain
    weight: kept beside the codes, or dequantised each time into `room`."""

    codes: FragmentMatrix
    plain: Tensor | None
    room: PlainRoom

    @classmethod
    def of(cls, matrix: GroupedMatrix, room: PlainRoom, *, keeps_plain: bool) -> CodesMatrix:
        """`matrix` must have passed `is_packed`."""
        dtype = room.plain.dtype
        plain = matrix.dequantised(dtype) if keeps_plain else None
        if plain is None:
            room.reserve(plain=matrix.shape[0] * matrix.shape[1])
            spread_kernel(kind_of(matrix, dtype)).load()  # not possible in a capture
        return cls(fragments(matrix, dtype), plain, room)

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape

    @property
    def device(self) -> torch.device:
        return self.codes.codes.device

    def linear(self, bias: Tensor | None) -> LinearOp:
        if self.plain is None:
            return PackedLinear(self, bias)
        return PackedBesidePlain(self, self.plain, bias)

    def ordered(self, x: Tensor) -> Tensor:
        """x with its columns in the order of the codes."""
        return x if self.codes.order is None else x.index_select(1, self.codes.order)

    def made_plain(self) -> Tensor:
        """The weight [N, K], its columns in the order of the codes."""
        matrix, (lines, columns) = self.codes, self.shape
        out = self.room.plain[: lines * columns].view(lines, columns)
        second = matrix.zeros if matrix.minima is None else matrix.minima
        spread_kernel(kind_of(matrix, out.dtype))(
            (columns // 64, -(-lines // 64), 1),
            *(matrix.codes, matrix.scales, second, out, lines, columns, matrix.group),
        )
        return out

    def tensors(self) -> tuple[Tensor, ...]:
        kept = self.room.tensors() if self.plain is None else (self.plain,)
        return *self.codes.tensors(), *kept


class PackedLinear(KeptQuantised):
    """x weight^T + bias, with a weight that is dequantised for each pass of many rows."""

    def __init__(self, matrix: CodesMatrix, bias: Tensor | None) -> None:
        self.matrix, self.bias = matrix, bias

    def __call__(self, x: Tensor) -> Tensor:
        x = self.matrix.ordered(x)
        if x.shape[0] > MOST_ROWS:
            return F.linear(x, self.matrix.made_plain(), self.bias)
        return multiply_packed(self.matrix.codes, x, self.bias)

    def tensors(self) -> tuple[Tensor, ...]:
        return self.matrix.tensors()


class PackedBesidePlain(KeptQuantised, PlainLinear):
    """x weight^T + bias, with the plain weight for many rows, as other kernels may read it."""

    def __init__(self, matrix: CodesMatrix, plain: Tensor, bias: Tensor | None) -> None:
        super().__init__(plain, bias)
        self.matrix = matrix

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[0] > MOST_ROWS:
            return super().__call__(x)
        return multiply_packed(self.matrix.codes, self.matrix.ordered(x), self.bias)

    def tensors(self) -> tuple[Tensor, ...]:
        return self.matrix.tensors()


def is_packed(matrix: GroupedMatrix, dtype: torch.dtype) -> bool:
    """Whether the kernels of packed.cu support a narrowed weight."""
    if not has_fragments(matrix, dtype) or not matrix.codes.is_cuda:
        return False
    return torch.cuda.get_device_capability() >= _LEAST


def load_kernels(products: Iterable[tuple[Shaped, Way]], dtype: torch.dtype) -> None:
    """Load the kernels for products of few rows, compiled in parallel before they are needed;
    NoCudaC if that is not possible."""
    wanted: dict[tuple[PackedKind, PackedTile, int, Way], None] = {}
    for matrix, way in products:
        kind = kind_of(matrix, dtype)
        for rows in (8, 16, MOST_ROWS):
            wanted[kind, *packed_tile(kind, rows, matrix.shape, way), way] = None
    if not wanted:
        return
    device = torch.cuda.current_device()

    def load(one: tuple[PackedKind, PackedTile, int, Way]) -> None:
        with torch.cuda.device(device):  # the current device is a thread's own
            kernel_of(*one).load()

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(load, wanted))
