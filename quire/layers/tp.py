"""TensorParallel: what one rank holds of a model, and how ranks add up and join their parts.

Layers ask for sums here, so that they read the same on one rank and on several. With one rank
everything is the identity. Sums are of every rank's part in the order of ranks, in float32, rounded
once: the same bits on every rank, whatever the number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from quire.ranks.shares import RankShare


class Exchange(Protocol):
    """How parts come to all ranks. Every rank makes the same calls in the same order."""

    def sum(self, part: Tensor) -> Tensor:
        """Every rank's part, added as `added` does."""

    def gather(self, part: Tensor) -> Sequence[Tensor]:
        """Every rank's part, which are of one shape, in the order of ranks."""


def added(parts: Sequence[Tensor]) -> Tensor:
    """The sum of parts in their order, in float32, rounded once to their type."""
    total = parts[0].to(torch.float32, copy=True)
    for part in parts[1:]:
        total += part
    return total.to(parts[0].dtype)


@dataclass(frozen=True, slots=True)
class TensorParallel:
    """One rank of several; alone if there is no exchange."""

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
        """The sum of every rank's part."""
        return part if self.exchange is None else self.exchange.sum(part)

    def all_gather(self, part: Tensor, width: int) -> Tensor:
        """Every rank's columns side by side, the first `width` of them."""
        if self.exchange is None:
            return part
        return torch.cat(list(self.exchange.gather(part)), dim=-1)[..., :width].contiguous()

    def least(self, number: int) -> int:
        """The smallest of every rank's numbers."""
        if self.exchange is None:
            return number
        return min(int(one) for one in self.exchange.gather(torch.tensor([number])))
