"""Matrix products in float32 in C: as fast as the processor's own library at its best, faster with
few rows, and with the same bits for a row in every batch.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from quire.backends.cpu.native.header import struct

PANEL = 48  # QUIRE_PANEL
_Product = struct("quire_product")


class NativeLinear:
    """A weight [N, K] in panels; the original tensor is not kept."""

    def __init__(self, library: ctypes.CDLL, weight: Tensor, bias: Tensor | None) -> None:
        self.library, self.bias = library, bias
        self.columns, self.depth = weight.shape
        num_panels = -(-self.columns // PANEL)
        self.packed = torch.empty(num_panels, self.depth, PANEL)
        self._pack(weight.contiguous())
        self.work = _Product(
            columns=self.columns,
            depth=self.depth,
            packed=self.packed.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
        )

    def __call__(self, x: Tensor) -> Tensor:
        if x.stride(1) != 1:
            x = x.contiguous()
        out = x.new_empty(x.shape[0], self.columns)
        work = self.work
        work.rows, work.x_stride = x.shape[0], x.stride(0)
        work.x, work.out = x.data_ptr(), out.data_ptr()
        self.library.quire_multiply(work)
        return out

    def _pack(self, weight: Tensor) -> None:
        packed = self.packed.data_ptr()
        self.library.quire_pack(weight.data_ptr(), self.columns, self.depth, packed)

    def write_rows(self, first: int, rows: Tensor) -> None:
        if len(rows) < self.columns:
            plain = self.look_up(torch.arange(self.columns))
            plain[first : first + len(rows)] = rows
        else:
            plain = rows.to("cpu", torch.float32).contiguous()
        self._pack(plain)

    def read_rows(self, first: int, count: int) -> Tensor:
        return self.look_up(torch.arange(first, first + count))

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.packed,)

    def look_up(self, rows: Tensor) -> Tensor:
        """Rows of the weight: [T] -> [T, K]."""
        rows = rows.contiguous()
        out = self.packed.new_empty(len(rows), self.depth)
        self.library.quire_take_rows(
            self.packed.data_ptr(), self.depth, rows.data_ptr(), len(rows), out.data_ptr()
        )
        return out
