"""One sequence's keys and values in quire's blocks, as the cache that Transformers expects."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor
from transformers import Cache

from quire.errors import UnsupportedModel
from quire.models.fallback.seen import TOKEN_SLOT, KvShape
from quire.models.model import KVCache


def _keeps(what: str) -> UnsupportedModel:
    return UnsupportedModel(f"its layers keep a state beside keys and values (a layer {what}).")


class SequenceCache(Cache):
    """What every cache here answers alike: `start` tokens were computed before this pass."""

    def __init__(self, num_layers: int, start: int) -> None:
        # Not Cache.__init__, which makes layers that hold tensors of their own.
        self.num_layers, self.start = num_layers, start

    def __len__(self) -> int:
        return self.num_layers

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.start

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self.start

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.start + query_length, 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    @property
    def layers(self) -> NoReturn:  # type: ignore[override]
        raise _keeps("reads the layers of its cache")

    def has_previous_state(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise _keeps("asks for a former state")

    def update_conv_state(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise _keeps("keeps a state of convolutions")

    def update_recurrent_state(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise _keeps("keeps a recurrent state")

    def update_indexer(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise _keeps("keeps keys of an indexer")

    @property
    def is_sliding(self) -> list[bool]:
        """Every layer keeps everything; a window is a mask."""
        return [False] * self.num_layers

    @property
    def is_compileable(self) -> bool:
        return False

    @property
    def is_initialized(self) -> bool:
        return True


class RecordingCache(SequenceCache):
    """Notes what each layer would keep."""

    def __init__(self) -> None:
        super().__init__(1, 0)
        self.kept: dict[int, list[KvShape]] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        shape = KvShape(key_states.shape[1], key_states.shape[-1], value_states.shape[-1])
        self.kept.setdefault(layer_idx, []).append(shape)
        return key_states, value_states


class PagedCache(SequenceCache):
    """Keys and values of one sequence: new ones are stored, all of them come back in order."""

    def __init__(self, cache: KVCache, blocks: Tensor, slots: Tensor, start: int) -> None:
        """Of each layer cache [2, N, kv_heads, S, D], the sequence's blocks, and the slots that its
        tokens of this pass go to."""
        super().__init__(len(cache), start)
        self._cache, self._blocks = cache, blocks
        size = cache[0].shape[3]
        self._to, self._offsets = slots // size, slots % size

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        keys = self._exchange(self._cache[layer_idx][0], key_states)
        return keys, self._exchange(self._cache[layer_idx][1], value_states)

    def exchange_tokens(self, new: Tensor) -> Tensor:
        """The same for tokens [n]: each is kept as its bytes."""
        shifts = torch.arange(0, 8 * TOKEN_SLOT.key_dim, 8, device=new.device)
        in_bytes = (new[:, None] >> shifts & 0xFF).to(self._cache[0].dtype)
        whole = self._exchange(self._cache[0][0], in_bytes[None, None])
        return (whole[0, 0].to(torch.int64) << shifts).sum(-1)

    def _exchange(self, pool: Tensor, new: Tensor) -> Tensor:
        """new [1, heads, tokens, D'] goes to its slots; all tokens of the sequence come back. A
        slot may be larger than a layer needs."""
        _, heads, count, width = new.shape
        places = pool[:, :heads, :, :width]
        places[self._to, :, self._offsets] = new[0].transpose(0, 1).to(pool.dtype)
        whole = places[self._blocks].transpose(0, 1).flatten(1, 2)
        return whole[None, :, : self.start + count].to(new.dtype)
