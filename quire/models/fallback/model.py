"""A causal model of Transformers, with the face that executors know of a decoder.

Three ways through a pass. Where every layer calls the attention interface in a way that quire's
kernels compute, all sequences go side by side through one call. Else each sequence goes through
by itself with Transformers' own attention, over keys and values that are read from quire's blocks
and written there. A model that keeps anything else between tokens is given the whole text of each
sequence in every pass; the blocks then hold tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from quire.backends.ops import HeadShape, Kernels
from quire.layers.attention import Kind, Pass, attention_inputs
from quire.layers.batch import Batch
from quire.layers.kv_groups import KVGroup
from quire.layers.rotary import Turn
from quire.models.fallback.body import Body, BodyCall
from quire.models.fallback.interface import computing, configs_of, own_attention
from quire.models.fallback.packed import PACKED, CurrentPass, PackedLayer, PackedPass
from quire.models.fallback.paged_cache import PagedCache
from quire.models.fallback.seen import Seen
from quire.models.model import KVCache


@dataclass(frozen=True, slots=True)
class Head:
    """What executors ask of a decoder's head."""

    out_features: int


class NoRotary:
    """Positions are the model's own affair: there is no table to be made."""

    has_axes = False

    def reach(self, max_len: int) -> None:
        """Any length is there."""

    def __call__(self, positions: Tensor) -> tuple[Turn, ...]:
        return ()


class TransformersModel:
    """Token ids to hidden states, hidden states to logits."""

    def __init__(
        self, module: nn.Module, call: BodyCall, seen: Seen, kernels: Kernels, shape: HeadShape
    ) -> None:
        self.module, self.seen, self.kernels, self._shape = module, seen, kernels, shape
        self.body = Body(module, call)
        self.head, self.rotary = Head(seen.vocab_size), NoRotary()
        self.packed = bool(seen.calls)
        self.windows = frozenset(call.window for call in seen.calls) or frozenset({None})
        self._current, self._configs = CurrentPass(), configs_of(module)
        layers = [PackedLayer(i, c, shape, self._current) for i, c in enumerate(seen.calls)]
        self._needs_inputs = any(layer.is_plain for layer in layers)
        for part in module.modules():
            index = getattr(part, "layer_idx", None)
            if isinstance(index, int) and 0 <= index < len(layers):
                part.quire_layer = layers[index]  # type: ignore[assignment]

    def __call__(self, batch: Batch, cache: KVCache) -> Tensor:
        """The last hidden states [T, H]. Of each layer the cache is [2, N, kv_heads, S, D]."""
        if self.packed:
            return self._side_by_side(batch, cache)
        compute = self._tokens_of_one if self.seen.kept else self._whole_text
        with computing(self._configs, attention=own_attention(self._configs)):
            parts = [compute(sequence, cache) for sequence in _sequences(batch)]
        spare = len(batch.token_ids) - batch.num_tokens
        return torch.cat([*parts, parts[-1].new_zeros(spare, parts[-1].shape[-1])])

    def compute(self, token_ids: Tensor, shared: Pass, cache: KVCache) -> Tensor:
        """The same for a pass whose attention was planned before: side by side alone."""
        work = PackedPass(cache, shared.attention, None)
        return self._packed_pass(token_ids, shared.positions, work)

    @property
    def kinds(self) -> frozenset[Kind]:
        return frozenset((0, window) for window in self.windows)

    @property
    def state_groups(self) -> frozenset[int]:
        return frozenset()

    def use_groups(self, groups: Sequence[KVGroup]) -> None:
        """All layers are one group: a sequence that goes through by itself reads all its blocks,
        and Transformers hides what lies behind a window."""
        if len(groups) > 1 or groups[0].window is not None:
            raise RuntimeError(f"a model of Transformers has one group of layers, got {groups}.")

    @property
    def dtype(self) -> torch.dtype:
        return self._shape.dtype

    @property
    def kv_dtype(self) -> torch.dtype:
        return self._shape.kv_dtype

    def tensors(self) -> Iterator[Tensor]:
        yield from self.module.parameters()
        yield from self.module.buffers()

    @property
    def needs_lengths(self) -> bool:
        """Whether a pass asks the host for the lengths of sequences: on a GPU only the device
        knows those of decode rows."""
        return not self.packed or self._needs_inputs

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, H] -> [R, V]"""
        return self.body.logits(hidden)

    def _side_by_side(self, batch: Batch, cache: KVCache) -> Tensor:
        inputs = attention_inputs(batch)
        steps = {kind: self.kernels.plan_attention(inputs, kind[1]) for kind in self.kinds}
        kept = inputs if self._needs_inputs else None
        work = PackedPass(cache, steps, kept)
        return self._packed_pass(batch.token_ids, batch.positions, work)

    def _packed_pass(self, token_ids: Tensor, positions: Tensor, work: PackedPass) -> Tensor:
        self._current.now = work
        try:
            with computing(self._configs, attention=PACKED):
                return self.body.hidden(token_ids[None], positions[None], None)
        finally:
            self._current.now = None

    def _tokens_of_one(self, sequence: _Sequence, cache: KVCache) -> Tensor:
        """The new tokens of a sequence, over what its blocks hold."""
        blocks = sequence.blocks(self._shape.block_size)
        paged = PagedCache(cache, blocks, sequence.slots, sequence.start)
        return self.body.hidden(sequence.token_ids[None], None, paged)

    def _whole_text(self, sequence: _Sequence, cache: KVCache) -> Tensor:
        """The same by computing everything anew."""
        blocks = sequence.blocks(self._shape.block_size)
        paged = PagedCache(cache, blocks, sequence.slots, sequence.start)
        text = paged.exchange_tokens(sequence.token_ids)
        return self.body.hidden(text[None], None, None)[sequence.start :]


@dataclass(frozen=True, slots=True)
class _Sequence:
    """One sequence of a batch: its new tokens, where they go, and where its blocks are."""

    token_ids: Tensor
    slots: Tensor
    start: int
    table: Tensor

    def blocks(self, block_size: int) -> Tensor:
        length = self.start + len(self.token_ids)
        return self.table[: -(-length // block_size)].to(torch.int64)


def _sequences(batch: Batch) -> Iterator[_Sequence]:
    starts = batch.query_starts.tolist()
    for i, length in enumerate(batch.context_lens.tolist()):
        first, last = starts[i : i + 2]
        new = slice(first, last)
        yield _Sequence(
            batch.token_ids[new], batch.slots[0, new], length - (last - first), batch.tables[0, i]
        )
