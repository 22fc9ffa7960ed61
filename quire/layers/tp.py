"""TensorParallel: what one rank holds of a layer, and how ranks add up their parts.

Layers ask for shards and sums here, so that they read the same on one rank and on several.
With one rank everything is the identity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire.errors import NotSupported

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class TensorParallel:
    """One rank of `size`."""

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        if self.size != 1 or self.rank != 0:
            raise NotSupported(
                f"tensor parallel rank {self.rank} of {self.size}: one rank is built so far. "
                "Set tensor_parallel_size=1."
            )

    def shard(self, count: int) -> range:
        """Which of `count` heads or columns are this rank's. 8 on rank 0 of 1 -> 0..8."""
        return range(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def all_reduce(self, part: Tensor) -> Tensor:
        """The sum of every rank's part."""
        return part

    def all_gather(self, part: Tensor) -> Tensor:
        """Every rank's columns side by side."""
        return part
