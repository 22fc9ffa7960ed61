"""Keys and values of sequences in quire's blocks, as the cache that Transformers expects."""

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
    """What every cache here answers alike: `start` tokens were computed before this pass. Of
    layers that keep states, `layers` hold them as Transformers' own cache does; none given, none
    keeps any."""

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
        """Read by every method of Transformers' own that is about states."""
        if not self._layers:
            raise _keeps("reads the layers of its cache")
        return self._layers

    def update_indexer(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise _keeps("keeps keys of an indexer")

    @property
    def is_sliding(self) -> list[bool]:
        """Every layer keeps everything; a window is a mask."""
        return [False] * len(self)

    @property
    def is_linear(self) -> list[bool]:
        """Which layers keep states, of those that it was given. Asked since Transformers 5.23."""
        kept = getattr(super(), "is_linear", None) if self._layers else None
        return [False] * len(self) if kept is None else list(kept)

    @property
    def is_dummy(self) -> list[bool]:
        """Likewise, of layers that keep nothing."""
        kept = getattr(super(), "is_dummy", None) if self._layers else None
        return [False] * len(self) if kept is None else list(kept)

    @property
    def is_compileable(self) -> bool:
        return False

    @property
    def is_initialized(self) -> bool:
        return True


class RecordingCache(SequenceCache):
    """Notes what each layer would keep."""

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
    """Keys and values of one layer and some sequences, in `pool` [2, N, kv_heads, S, D]: token
    (i, j) of all is at `places` of block `blocks`, [B, L] both; of those of this pass the ones that
    are `is_new` [B, N] go to `slots`, row after row."""

    pool: Tensor
    blocks: Tensor
    places: Tensor
    slots: Tensor
    is_new: Tensor

    def exchange(self, half: int, new: Tensor) -> Tensor:
        """new [B, heads, N, D'] goes to its slots; all tokens [B, heads, L, D'] come back. A slot
        may be larger than a layer needs."""
        _, heads, _, width = new.shape
        pool, size = self.pool[half][:, :heads, :, :width], self.pool.shape[3]
        kept = new.transpose(1, 2)[self.is_new].to(pool.dtype)
        pool[self.slots // size, :, self.slots % size] = kept
        return pool[self.blocks, :, self.places].transpose(1, 2).to(new.dtype)

    def exchange_tokens(self, new: Tensor) -> Tensor:
        """The same for tokens, [B, N] -> [B, L]: each is kept as its bytes."""
        shifts = torch.arange(0, 8 * TOKEN_SLOT.key_dim, 8, device=new.device)
        in_bytes = (new[:, None, :, None] >> shifts & 0xFF).to(self.pool.dtype)
        return (self.exchange(0, in_bytes)[:, 0].to(torch.int64) << shifts).sum(-1)


class PagedCache(SequenceCache):
    """Keys and values of the sequences of a call: new ones are stored, all of them come back in
    order."""

    def __init__(self, paged: Mapping[int, Paged], start: int, layers: Sequence[Any] = ()) -> None:
        super().__init__(len(paged), start, layers)
        self._paged = paged

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        of_layer = self._paged[layer_idx]
        return of_layer.exchange(0, key_states), of_layer.exchange(1, value_states)
