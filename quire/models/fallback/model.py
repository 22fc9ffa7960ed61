"""A causal model of Transformers, with the face that executors know of a decoder.

Two ways through a pass. Where every layer calls the attention interface in a way that quire's
kernels compute, all sequences go side by side through one call. Else each sequence goes through
by itself with Transformers' own attention, over keys and values that are read from quire's blocks
and written there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from quire.backends.ops import HeadShape, Kernels
from quire.layers.attention import attention_inputs
from quire.layers.batch import Batch
from quire.models.fallback.body import Body, BodyCall
from quire.models.fallback.interface import computing
from quire.models.fallback.packed import PACKED, CurrentPass, PackedLayer, PackedPass
from quire.models.fallback.paged_cache import PagedCache, blocks_of
from quire.models.fallback.seen import Seen

EAGER = "eager"  # Transformers' own attention, with every softcap and sink of the model


@dataclass(frozen=True, slots=True)
class Head:
    """What executors ask of a decoder's head."""

    out_features: int


class NoRotary:
    """Positions are the model's own affair: there is no table to be made."""

    def reach(self, max_len: int) -> None:
        """Any length is there."""


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
        self._needs_inputs = any(c.softcap is not None or c.has_sinks for c in seen.calls)
        self._current = CurrentPass()
        for part in module.modules():
            index = getattr(part, "layer_idx", None)
            if isinstance(index, int) and index < len(seen.calls):
                layer = PackedLayer(index, seen.calls[index], shape, self._current)
                part.quire_layer = layer  # type: ignore[assignment]

    def __call__(self, batch: Batch, cache: Tensor) -> Tensor:
        """The last hidden states [T, H]. cache [layers, 2, N, kv_heads, S, D]"""
        return self._side_by_side(batch, cache) if self.packed else self._one_by_one(batch, cache)

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, H] -> [R, V]"""
        return self.body.logits(hidden)

    def _side_by_side(self, batch: Batch, cache: Tensor) -> Tensor:
        inputs = attention_inputs(batch)
        steps = {w: self.kernels.plan_attention(inputs, w) for w in self.windows}
        kept = inputs if self._needs_inputs else None
        self._current.now = PackedPass(cache, steps, kept)
        try:
            with computing(self.module, attention=PACKED):
                return self.body.hidden(batch.token_ids[None], batch.positions[None], None)
        finally:
            self._current.now = None

    def _one_by_one(self, batch: Batch, cache: Tensor) -> Tensor:
        size, starts = self._shape.block_size, batch.query_starts.tolist()
        parts = []
        with computing(self.module, attention=EAGER):
            for i, length in enumerate(batch.context_lens.tolist()):
                first, last = starts[i : i + 2]
                paged = PagedCache(
                    cache,
                    blocks_of(batch.tables[i], length, size),
                    batch.slots[first:last],
                    length - (last - first),
                )
                parts.append(self.body.hidden(batch.token_ids[None, first:last], None, paged))
        spare = len(batch.token_ids) - batch.num_tokens
        parts.append(parts[-1].new_zeros(spare, parts[-1].shape[-1]))
        return torch.cat(parts)
