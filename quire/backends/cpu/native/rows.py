"""Ops of encoders between products, in C: activations, gates and LayerNorm of float32 rows.

Torch reads and writes memory for every step of such an op; here a row is read once. Other dtypes
are left to torch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.backends.cpu.native.library import TYPES

KINDS = {"silu": 0, "gelu_tanh": 1, "gelu": 2, "relu": 3}  # QUIRE_SILU, ...


class NativeRows:
    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library

    def activation(
        self, name: str, *, gated: bool, plain: Callable[[Tensor], Tensor]
    ) -> Callable[[Tensor], Tensor]:
        """The activation of that name, in place; if gated: of the first half of each row, times the
        second. `plain` is the same in torch."""
        kind = KINDS.get(name)
        if kind is None:
            return plain
        return partial(self._gate if gated else self._activate, kind, plain)

    def _activate(self, kind: int, plain: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        if x.dtype != torch.float32 or not x.is_contiguous():
            return plain(x)
        self.library.quire_activate(kind, x.shape[0], x.shape[1], x.data_ptr())
        return x

    def _gate(self, kind: int, plain: Callable[[Tensor], Tensor], both: Tensor) -> Tensor:
        if both.dtype != torch.float32 or not both.is_contiguous():
            return plain(both)
        count, width = both.shape[0], both.shape[1] // 2
        out = both.new_empty(count, width)
        self.library.quire_gate(
            TYPES[both.dtype], kind, count, width, both.data_ptr(), both.stride(0), out.data_ptr()
        )
        return out

    def layer_norm(
        self, x: Tensor, added: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float
    ) -> Tensor:
        """LayerNorm of x [T, H], or of x + added, which overwrites x."""
        given = (x,) if added is None else (x, added)
        if not all(one.dtype == torch.float32 and one.is_contiguous() for one in given):
            x = x if added is None else x.add_(added)
            return F.layer_norm(x, weight.shape, weight, bias, eps)
        out = torch.empty_like(x) if added is None else x
        self.library.quire_layer_norm(
            x.shape[0],
            x.shape[1],
            x.data_ptr(),
            None if added is None else added.data_ptr(),
            weight.data_ptr(),
            None if bias is None else bias.data_ptr(),
            eps,
            out.data_ptr(),
        )
        return out
