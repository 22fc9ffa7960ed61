"""Products with codes of 4 bits, for few rows and for many."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

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
from quire.backends.linear import KeptQuantised
from quire.backends.quantised.fragments import fragments, has_fragments
from quire.backends.quantised.grouped import GroupedMatrix

_LEAST = (9, 0)  # clusters of blocks, and kernels that begin before the one ahead has ended
_THREADS = 8


class PlainRoom(Protocol):
    """Memory in which a weight is made plain."""

    plain: Tensor

    def reserve(self, *, plain: int = 0) -> None: ...

    def tensors(self) -> tuple[Tensor, ...]: ...


class PackedLinear(KeptQuantised):
    """x weight^T + bias. Up to MOST_ROWS rows are multiplied with the codes; more with the plain
    weight, which is kept beside them, or made anew each time."""

    def __init__(
        self, matrix: GroupedMatrix, bias: Tensor | None, room: PlainRoom, *, keeps_plain: bool
    ) -> None:
        """`matrix` is one that `is_packed` says yes to."""
        dtype = room.plain.dtype
        self.matrix, self.bias, self.order = fragments(matrix, dtype), bias, matrix.order
        self.plain = matrix.dequantised(dtype) if keeps_plain else None
        self._room = room
        if self.plain is None:
            room.reserve(plain=matrix.shape[0] * matrix.shape[1])
            spread_kernel(kind_of(matrix, dtype)).load()  # nothing is loaded into a graph

    def __call__(self, x: Tensor) -> Tensor:
        many = x.shape[0] > MOST_ROWS
        if many and self.plain is not None:
            return F.linear(x, self.plain, self.bias)
        if self.order is not None:
            x = x.index_select(1, self.order)
        if many:
            return F.linear(x, self.made_plain(), self.bias)
        return multiply_packed(self.matrix, x, self.bias)

    def made_plain(self) -> Tensor:
        """The weight [N, K], its columns in the order of the codes."""
        matrix, (lines, columns) = self.matrix, self.matrix.shape
        out = self._room.plain[: lines * columns].view(lines, columns)
        second = matrix.zeros if matrix.minima is None else matrix.minima
        spread_kernel(kind_of(matrix, out.dtype))(
            (columns // 64, -(-lines // 64), 1),
            *(matrix.codes, matrix.scales, second, out, lines, columns, matrix.group),
        )
        return out

    def tensors(self) -> tuple[Tensor, ...]:
        kept = self._room.tensors() if self.plain is None else (self.plain,)
        return *self.matrix.tensors(), *kept


def is_packed(matrix: GroupedMatrix, dtype: torch.dtype) -> bool:
    """Whether a weight, narrowed, can be multiplied with by the kernels of packed.cu."""
    if not has_fragments(matrix, dtype) or not matrix.codes.is_cuda:
        return False
    return torch.cuda.get_device_capability() >= _LEAST


def load_kernels(weights: Iterable[Shaped], dtype: torch.dtype) -> None:
    """Those that products of few rows take, compiled side by side before any is wanted; NoCudaC
    where they cannot be had."""
    wanted: dict[tuple[PackedKind, PackedTile, int], None] = {}
    for matrix in weights:
        kind = kind_of(matrix, dtype)
        for rows in (8, 16, MOST_ROWS):
            wanted[kind, *packed_tile(kind, rows, matrix.shape)] = None
    if not wanted:
        return
    device = torch.cuda.current_device()

    def load(one: tuple[PackedKind, PackedTile, int]) -> None:
        with torch.cuda.device(device):  # which threads have for themselves
            kernel_of(*one).load()

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(load, wanted))
