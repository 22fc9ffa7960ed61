"""Model: what executors know of one, whoever computes it."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from quire.backends.ops import Kernels
from quire.layers.batch import Batch


class OutputHead(Protocol):
    """What makes logits."""

    @property
    def out_features(self) -> int:
        """Logits of one token."""


class Positions(Protocol):
    """Whatever a model keeps for each position."""

    def reach(self, max_len: int) -> None:
        """Be ready for positions below `max_len`."""


class Model(Protocol):
    """Token ids to hidden states, hidden states to logits."""

    @property
    def kernels(self) -> Kernels: ...

    @property
    def head(self) -> OutputHead: ...

    @property
    def rotary(self) -> Positions: ...

    def __call__(self, batch: Batch, cache: Tensor) -> Tensor:
        """The last hidden states [T, H]. cache [layers, 2, N, kv_heads, S, D]"""

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, H] -> [R, V]"""
