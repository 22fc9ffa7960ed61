"""Experts whose weights stay quantised: the product of each is a part of the product of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.backends.linear import KeptQuantised, LinearOp
from quire.backends.triton.experts import ExpertProduct


class KeptExperts(ExpertProduct, Protocol):
    """One product of every expert, with quantised weights."""

    @property
    def device(self) -> torch.device: ...

    def plain(self, expert: int) -> Tensor:
        """The weight [N, K] of one expert."""

    def with_biases(self, biases: Tensor) -> KeptExperts:
        """The same with biases [E, N]."""

    def tensors(self) -> tuple[Tensor, ...]: ...


@dataclass(frozen=True, slots=True)
class KeptExpert:
    """The weight [N, K] of one of them."""

    experts: KeptExperts
    index: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.experts.shape[1:]

    @property
    def device(self) -> torch.device:
        return self.experts.device

    def linear(self, bias: Tensor | None) -> ExpertLinear:
        return ExpertLinear(self, bias)


class ExpertLinear(KeptQuantised):
    """x weight^T + bias of one expert. A layer computes all of its experts at once (`joined`)."""

    def __init__(self, weight: KeptExpert, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.experts.plain(self.weight.index), self.bias)

    def tensors(self) -> tuple[Tensor, ...]:
        return self.weight.experts.tensors()


def joined(products: Sequence[LinearOp]) -> KeptExperts | None:
    """The product of all experts, from those of each; None if these do not stay quantised."""
    kept = [one for one in products if isinstance(one, ExpertLinear)]
    biases = [one.bias for one in kept if one.bias is not None]
    if len(kept) < len(products) or len(biases) not in (0, len(kept)):
        return None
    experts = kept[0].weight.experts
    return experts.with_biases(torch.stack(biases)) if biases else experts
