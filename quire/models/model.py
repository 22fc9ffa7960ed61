"""Model: what executors use of a model: quire's decoder or a module of Transformers."""

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

KVCache = Tensor | Sequence[Tensor]  # of each layer: [2, N, kv_heads, S, D]


class OutputHead(Protocol):
    """The product that makes logits."""

    @property
    def out_features(self) -> int:
        """The number of logits for one token."""


class Positions(Protocol):
    """What a model has for each position: the angles of its ropes."""

    @property
    def has_axes(self) -> bool:
        """Whether positions have three coordinates."""

    def reach(self, max_len: int) -> None:
        """Prepare for positions below `max_len`."""

    def __call__(self, positions: Tensor) -> tuple[Turn, ...]:
        """Positions [T] -> cos and sin of each rope of the model."""


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
        """The kinds of attention that must be planned for a pass."""

    @property
    def state_tables(self) -> frozenset[int]:
        """The block tables of layers that keep states."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of activations."""

    @property
    def kv_dtype(self) -> torch.dtype:
        """The dtype of keys and values, unless an option says otherwise."""

    def use_groups(self, groups: Sequence[KVGroup]) -> None:
        """Assign the layers to these groups: they read and write KV under their group's block
        table."""

    def __call__(self, batch: Batch, cache: KVCache) -> Tensor:
        """The last hidden states [T, H]. The cache of a layer is [2, N, kv_heads, S, D] and is
        addressed by the block table of its group."""

    def compute(self, token_ids: Tensor, shared: Pass, cache: KVCache) -> Tensor:
        """The last hidden states of a pass whose attention is planned already (`shared`)."""

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, H] -> [R, V]"""


class ModuleModel(Model, Protocol):
    """A Model that runs a module of Transformers, whose weights it uses."""

    def tensors(self) -> Iterator[Tensor]:
        """All tensors that it keeps on its device."""

    def why_not_captured(self) -> str:
        """Why its passes cannot be CUDA graphs, by a trial; empty if they can."""
