"""TensorParallel: one rank's share of a model, and how ranks add up and join their results.

Layers call it for every sum over ranks, so a layer's code is the same on one rank and on several.
With one rank every method returns its argument. A sum adds the parts of all ranks in the order of
ranks, in float32, and is rounded once: all ranks get the same bits, whatever the number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from quire.ranks.shares import RankShare


class Exchange(Protocol):
    """Sends every rank's part to all ranks. Every rank must make the same calls in the same
    order."""

    def sum(self, part: Tensor) -> Tensor:
        """The sum of all ranks' parts, computed as in `added`."""

    def gather(self, part: Tensor) -> Sequence[Tensor]:
        """The parts of all ranks, in the order of ranks. All parts have the same shape."""


def added(parts: Sequence[Tensor]) -> Tensor:
    """The parts added up in their order, in float32, and rounded once to their own dtype."""
    total = parts[0].to(torch.float32, copy=True)
    for part in parts[1:]:
        total += part
    return total.to(parts[0].dtype)


@dataclass(frozen=True, slots=True)
class TensorParallel:
    """One rank. Without an exchange it is the only one."""

    share: RankShare = RankShare()
    exchange: Exchange | None = None

    def __post_init__(self) -> None:
        if (self.share.size > 1) != (self.exchange is not None):
            raise ValueError(f"{self.share} with the exchange {self.exchange}: one needs the other")

    @property
    def size(self) -> int:
        return self.share.size

    def head_rows(self, vocab_size: int) -> int:
        return vocab_size if self.exchange is None else self.share.head_rows(vocab_size)

    def all_reduce(self, part: Tensor) -> Tensor:
        """The sum of all ranks' parts."""
        return part if self.exchange is None else self.exchange.sum(part)

    def all_gather(self, part: Tensor, width: int) -> Tensor:
        """The columns of all ranks side by side, cut to the first `width`: the rest is padding."""
        if self.exchange is None:
            return part
        return torch.cat(list(self.exchange.gather(part)), dim=-1)[..., :width].contiguous()

    def least(self, number: int) -> int:
        """The smallest number that any rank passes."""
        if self.exchange is None:
            return number
        return min(int(one) for one in self.exchange.gather(torch.tensor([number])))
