"""Model: what executors know of one, whoever computes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from quire.backends.ops import Kernels
from quire.layers.attention import Kind, Pass
from quire.layers.batch import Batch
from quire.layers.kv_groups import KVGroup
from quire.layers.rotary import Turn

KVCache = Tensor | Sequence[Tensor]  # of every layer [2, N, kv_heads, S, D]


class OutputHead(Protocol):
    """What makes logits."""

    @property
    def out_features(self) -> int:
        """Logits of one token."""


class Positions(Protocol):
    """Whatever a model keeps for each position."""

    @property
    def has_axes(self) -> bool:
        """Whether positions have three coordinates."""

    def reach(self, max_len: int) -> None:
        """Be ready for positions below `max_len`."""

    def __call__(self, positions: Tensor) -> tuple[Turn, ...]:
        """[T] -> how far heads are turned there, by each rope of the model."""


class Model(Protocol):
    """Token ids to hidden states, hidden states to logits."""

    @property
    def kernels(self) -> Kernels: ...

    @property
    def head(self) -> OutputHead: ...

    @property
    def rotary(self) -> Positions: ...

    @property
    def kinds(self) -> frozenset[Kind]:
        """What the attention of a pass has to be planned for."""

    @property
    def state_groups(self) -> frozenset[int]:
        """The groups of layers that keep states."""

    @property
    def dtype(self) -> torch.dtype:
        """What activations are."""

    @property
    def kv_dtype(self) -> torch.dtype:
        """What keys and values are kept as, unless an option says otherwise."""

    def use_groups(self, groups: Sequence[KVGroup]) -> None:
        """Read and write KV under the block tables of these groups of layers, from now on."""

    def __call__(self, batch: Batch, cache: KVCache) -> Tensor:
        """The last hidden states [T, H]. Of each layer the cache is [2, N, kv_heads, S, D], under
        the tables of its group."""

    def compute(self, token_ids: Tensor, shared: Pass, cache: KVCache) -> Tensor:
        """The same for a pass whose attention was planned before."""

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, H] -> [R, V]"""


class ModuleModel(Model, Protocol):
    """One whose weights are those of a module that is not quire's."""

    def tensors(self) -> Iterator[Tensor]:
        """All that it keeps on its device."""

    def why_not_captured(self) -> str:
        """Why its passes cannot be CUDA graphs; empty if they can. Found out by trying."""
