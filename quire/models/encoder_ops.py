"""The ops that a device computes for an encoder, and torch's versions for devices without their
own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.backends.texts import AttendTexts, attend_texts

Op = Callable[[Tensor], Tensor]
LayerNorm = Callable[[Tensor, Tensor | None, Tensor, Tensor | None, float], Tensor]


class NormOp(Protocol):
    def __call__(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """The norm of x, or of x + added, which may overwrite x."""


def no_norm(x: Tensor, added: Tensor | None = None) -> Tensor:
    """For places where a model has no norm."""
    return x if added is None else x.add_(added)


def activation(name: str) -> Op:
    named: dict[str, Op] = {
        "identity": lambda x: x,
        "tanh": torch.tanh,
        "relu": F.relu,
        "gelu": F.gelu,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "silu": F.silu,
        "sigmoid": torch.sigmoid,
        "softmax": lambda x: x.softmax(-1),
    }
    return named[name]


def activation_of_rows(name: str, gated: bool) -> Op:
    """The activation of that name; if gated, of the first half of each row, times the second."""
    inner = activation(name)
    if not gated:
        return inner

    def opened(both: Tensor) -> Tensor:
        first, second = both.chunk(2, -1)
        return inner(first) * second

    return opened


def layer_norm(
    x: Tensor, added: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float
) -> Tensor:
    """LayerNorm of x, or of x + added, which may overwrite x."""
    x = no_norm(x, added)
    return F.layer_norm(x, weight.shape, weight, bias, eps)


@dataclass(frozen=True, slots=True)
class EncoderOps:
    """The ops of a device for an encoder. `padded`: how many rows to run a product with, for a
    number of tokens. `takes`: dtype of inputs and results of products, if not that of the weights.
    `join`: one op for two products with an activation between them, or None."""

    make_linear: Callable[[Tensor, Tensor | None], Op]
    padded: Callable[[int], int] = lambda count: count
    attend: AttendTexts = attend_texts
    takes: torch.dtype | None = None
    activation: Callable[[str, bool], Op] = activation_of_rows
    layer_norm: LayerNorm = layer_norm
    join: Callable[[Op, Op, str], Op | None] = lambda first, second, activation: None


@dataclass(frozen=True, slots=True)
class Norm:
    """LayerNorm over the last dimension."""

    weight: Tensor
    bias: Tensor | None
    eps: float
    compute: LayerNorm = layer_norm

    def __call__(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        return self.compute(x, added, self.weight, self.bias, self.eps)
