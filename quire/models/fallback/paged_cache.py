"""Keys and values in quire's blocks, behind the interface of Transformers' Cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor
from transformers import Cache

from quire.errors import UnsupportedModel
from quire.models.fallback.seen import TOKEN_SLOT, KvShape


def _keeps(what: str) -> UnsupportedModel:
    return UnsupportedModel(f"its layers keep a state beside keys and values (a layer {what}).")


class SequenceCache(Cache):
    """What all caches here have in common: `start` tokens were computed before this pass, and
    `layers` are Transformers' cache layers with states, or empty if no layer keeps a state."""

    def __init__(self, num_layers: int, start: int, layers: Sequence[Any] = ()) -> None:
        # Not Cache.__init__, which makes layers that hold tensors of their own.
        self.num_layers, self.start, self._layers = num_layers, start, list(layers)

    def __len__(self) -> int:
        return len(self._layers) or self.num_layers

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.start

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self.start

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.start + query_length, 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    @property
    def layers(self) -> list[Any]:  # type: ignore[override]
        """All of Transformers' own methods about states read this."""
        if not self._layers:
            raise _keeps("reads the layers of its cache")
        return self._layers

    def update_indexer(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise _keeps("keeps keys of an indexer")

    @property
    def is_sliding(self) -> list[bool]:
        """Every layer keeps all tokens; windows are done by masks."""
        return [False] * len(self)

    @property
    def is_linear(self) -> list[bool]:
        """Which of the given layers keep states. Transformers reads it since 5.23."""
        kept = getattr(super(), "is_linear", None) if self._layers else None
        return [False] * len(self) if kept is None else list(kept)

    @property
    def is_dummy(self) -> list[bool]:
        """Which of the given layers keep nothing."""
        kept = getattr(super(), "is_dummy", None) if self._layers else None
        return [False] * len(self) if kept is None else list(kept)

    @property
    def is_compileable(self) -> bool:
        return False

    @property
    def is_initialized(self) -> bool:
        return True


class RecordingCache(SequenceCache):
    """A cache for the dry pass: it keeps nothing but the shapes of keys and values."""

    def __init__(self, layers: Sequence[Any] = ()) -> None:
        super().__init__(1, 0, layers)
        self.kept: dict[int, list[KvShape]] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        shape = KvShape(key_states.shape[1], key_states.shape[-1], value_states.shape[-1])
        self.kept.setdefault(layer_idx, []).append(shape)
        return key_states, value_states


@dataclass(frozen=True, slots=True)
class Paged:
    """Keys and values of one layer for some sequences, in `pool` [2, N, kv_heads, S, D]. Token (i,
    j) is at offset places[i, j] of block blocks[i, j], both [B, L]. The tokens of this pass for
    which `is_new` [B, N] is True are stored in `slots`, row after row."""

    pool: Tensor
    blocks: Tensor
    places: Tensor
    slots: Tensor
    is_new: Tensor

    def exchange(self, half: int, new: Tensor) -> Tensor:
        """Store new [B, heads, N, D'] in the slots, and return all tokens [B, heads, L, D']. A slot
        may be larger than a layer needs."""
        _, heads, _, width = new.shape
        pool, size = self.pool[half][:, :heads, :, :width], self.pool.shape[3]
        kept = new.transpose(1, 2)[self.is_new].to(pool.dtype)
        pool[self.slots // size, :, self.slots % size] = kept
        return pool[self.blocks, :, self.places].transpose(1, 2).to(new.dtype)

    def exchange_tokens(self, new: Tensor) -> Tensor:
        """The same for token ids, [B, N] -> [B, L]; an id is kept as its bytes."""
        shifts = torch.arange(0, 8 * TOKEN_SLOT.key_dim, 8, device=new.device)
        in_bytes = (new[:, None, :, None] >> shifts & 0xFF).to(self.pool.dtype)
        return (self.exchange(0, in_bytes)[:, 0].to(torch.int64) << shifts).sum(-1)


class PagedCache(SequenceCache):
    """Keys and values of the sequences of a call: stores the new ones and returns all, in order."""

    def __init__(self, paged: Mapping[int, Paged], start: int, layers: Sequence[Any] = ()) -> None:
        super().__init__(len(paged), start, layers)
        self._paged = paged

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        of_layer = self._paged[layer_idx]
        return of_layer.exchange(0, key_states), of_layer.exchange(1, value_states)
