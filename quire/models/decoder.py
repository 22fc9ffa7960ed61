"""Decoder: a decoder-only transformer, built from parts as the plans of its spec say.

Everything that differs between families is decided while building, not in the forward pass. The
Decoder is given a Batch and a KV cache, and does not know where they come from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from quire.backends.generic import softcapped
from quire.backends.ops import HeadShape, Kernels
from quire.backends.two_way import TwoWayAttention
from quire.errors import UnsupportedModel
from quire.families.registry import family_named
from quire.layers.adapted import AdapterSites
from quire.layers.attention import Kind, Pass, attention_inputs, planned
from quire.layers.batch import Batch
from quire.layers.embedding import Embedding, shared_table
from quire.layers.kv_groups import BlockTables, KVGroup
from quire.layers.layer_embeddings import LayerEmbeddings
from quire.layers.linear import Linear
from quire.layers.norm import Norm
from quire.layers.overlay import Overlay
from quire.layers.rotary import Rotary
from quire.layers.tp import TensorParallel
from quire.models.layers import Layer
from quire.models.long_parts import layer_embeddings
from quire.models.model import KVCache
from quire.models.parts import Parts
from quire.models.stream_parts import StreamsLayer
from quire.models.weight_parts import Places, Weights
from quire.spec import Layers, LogitsPlan, ModelSpec


class FinishedLogits:
    """Logits times a number, then softcapped. A bias was added by the product already."""

    def __init__(self, plan: LogitsPlan) -> None:
        self.scale, self.softcap = plan.scale, plan.softcap

    def __call__(self, logits: Tensor) -> Tensor:
        return softcapped(logits.mul_(self.scale), self.softcap)


def unchanged(logits: Tensor) -> Tensor:
    return logits


class Decoder:
    """Token ids to hidden states, hidden states to logits."""

    def __init__(
        self,
        kernels: Kernels,
        embedding: Embedding,
        first_norm: Norm,
        layers: Sequence[Layer | StreamsLayer],
        head: Linear,
        rotary: Rotary,
        tp: TensorParallel,
        *,
        vocab_size: int,
        places: Places,
        kv_dtype: torch.dtype,
        finish: Callable[[Tensor], Tensor] = unchanged,
        layer_embeddings: LayerEmbeddings | None = None,
        two_way: Layers = "all",
    ) -> None:
        """`places`: where each weight is. `kv_dtype`: dtype of keys and values unless an option
        says otherwise. `finish`: applied to the products of the head. `layer_embeddings`: makes
        embeddings for single layers. `two_way`: the layers in which spans are seen both ways."""
        self.kernels, self.embedding, self.first_norm = kernels, embedding, first_norm
        self.layers, self.head, self.rotary, self.tp = tuple(layers), head, rotary, tp
        self.vocab_size, self.places = vocab_size, places
        self.kv_dtype, self.finish = kv_dtype, finish
        self.layer_embeddings, self.two_way = layer_embeddings, two_way

    @property
    def dtype(self) -> torch.dtype:
        return self.layers[0].attention.shape.dtype

    @property
    def kinds(self) -> frozenset[Kind]:
        """The kinds of attention that must be planned for a pass."""
        kinds = (layer.attention.kind for layer in self.layers)
        return frozenset(kind for kind in kinds if kind is not None)

    @property
    def state_tables(self) -> frozenset[int]:
        return frozenset(one.attention.table for one in self.layers if one.attention.kind is None)

    def use_groups(self, groups: Sequence[KVGroup]) -> None:
        """Assign the layers to these groups: they read and write KV under their group's block
        table, or the one of their part of its places."""
        tables = BlockTables.of(groups)
        for number, group in enumerate(groups):
            for layer, index in group.members:
                self.layers[layer].attention.table = tables.table_of(number, index)

    def __call__(self, batch: Batch, cache: KVCache) -> Tensor:
        """The last hidden states [T, H], normed. The cache of a layer is [2, N, kv_heads, S, D], or
        [1, ...] where values are a part of keys, and is addressed by the table of its group."""
        kinds = self.kinds
        inputs = {kind.table: attention_inputs(batch, kind.table) for kind in kinds}
        attention = {kind: planned(self.kernels, kind, inputs[kind.table]) for kind in kinds}
        states = {
            table: self.kernels.plan_states(attention_inputs(batch, table))
            for table in self.state_tables
        }
        if batch.two_way:
            spans = batch.two_way
            attention |= {
                kind: TwoWayAttention(step, kind.shape, inputs[kind.table], kind.window, spans)
                for kind, step in attention.items()
                if self.two_way == "all" or kind.window is not None
            }
        turns = self.rotary(batch.positions if batch.coordinates is None else batch.coordinates)
        slots = batch.slots.unbind()
        heard = batch.heard
        shared = Pass(batch.positions, turns, slots, attention, batch.overlay, states, heard)
        return self.compute(batch.token_ids, shared, cache)

    def compute(self, token_ids: Tensor, shared: Pass, cache: KVCache) -> Tensor:
        """The last hidden states of a pass whose attention is planned already (`shared`)."""
        residual = self.embedding(token_ids, shared.positions)
        if shared.overlay is not None:
            shared.overlay.write(residual)
            if shared.overlay.deeper is not None:
                return self._compute_deeper(residual, shared, cache, shared.overlay)
        if self.layer_embeddings is not None:
            if shared.overlay is not None:
                token_ids = shared.overlay.replaced(token_ids, self.layer_embeddings.of_media)
            made = self.layer_embeddings(token_ids, shared.positions, residual)
            shared = replace(shared, layer_embeddings=made)
        normed = self.first_norm(residual)
        for layer, kept in zip(self.layers, cache, strict=True):
            normed = layer(normed, residual, shared, kept[0], kept[-1])
        return normed

    def _compute_deeper(
        self, residual: Tensor, shared: Pass, cache: KVCache, overlay: Overlay
    ) -> Tensor:
        """As `compute`, for an overlay that also adds rows after the first layers."""
        normed = self.first_norm(residual)
        for number, (layer, kept) in enumerate(zip(self.layers, cache, strict=True)):
            normed = layer(normed, residual, shared, kept[0], kept[-1])
            if overlay.add(number, residual):
                normed = layer.next_norm(residual)
        return normed

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, H] -> [R, V]"""
        return self.finish(self.tp.all_gather(self.head(hidden), self.vocab_size))


def build_model(
    spec: ModelSpec,
    weights: Weights,
    kernels: Kernels,
    shape: HeadShape,
    *,
    max_len: int,
    tp: TensorParallel,
    adapters: AdapterSites | None = None,
) -> Decoder:
    """Build the model of a spec from its weights. UnsupportedModel if the family is not known.

    Each weight is taken out of the dict when it is used, so that a weight and its packed form are
    not in memory together. `adapters`: makes the slots for LoRA adapters, if there are to be some.
    """
    family_named(spec.family)
    if len({one.kv_tensors for one in spec.attentions}) > 1:
        raise UnsupportedModel("layers that keep latents beside layers that keep keys and values.")
    parts = Parts(spec, weights, kernels, shape, tp, adapters)
    table = parts.matrix("embed.weight", spec.vocab_size, spec.hidden_size)
    norms = [parts.norm_before(index) for index in range(spec.num_layers + 1)]
    layers = [parts.layer(i, plan, norms[i + 1]) for i, plan in enumerate(spec.layers)]
    tied = spec.tied_embeddings
    rows = tp.head_rows(spec.vocab_size)
    bias = parts.tensor("head.bias", rows) if spec.logits.bias else None
    weight = table if tied else parts.matrix("head.weight", rows, spec.hidden_size)
    head = Linear(kernels, weight, bias)
    embedding = parts.embedding(shared_table(table, head) if tied else table)
    own = spec.layer_embeddings
    made = None if own is None else layer_embeddings(parts, own)
    tables: Places = {"embed.weight": (embedding.place,), "head.weight": (head,)}
    if tied:  # one weight, packed once for both, or two copies
        both = (head,) if embedding.place is head.multiply else (embedding.place, head)
        tables = {"embed.weight": both}
    return Decoder(
        kernels,
        embedding,
        norms[0],
        layers,
        parts.adapted("head", head),
        Rotary(spec.rotations, max_len, table.device),
        tp,
        vocab_size=spec.vocab_size,
        places=parts.places | tables,
        kv_dtype=shape.kv_dtype if isinstance(table, Tensor) else kernels.kv_dtype_beside_int8(),
        finish=logits_finish(spec.logits),
        layer_embeddings=made,
        two_way=spec.two_way,
    )


def logits_finish(plan: LogitsPlan) -> Callable[[Tensor], Tensor]:
    """The function that finishes the products of the head: scale and softcap, or nothing."""
    plain = plan.scale == 1.0 and plan.softcap is None
    return unchanged if plain else FinishedLogits(plan)


def head_shape(
    spec: ModelSpec, block_size: int, dtype: torch.dtype, *, fp8_kv: bool = False
) -> HeadShape:
    """The attention heads of a spec's first layer, in the form that the kernels take."""
    return HeadShape.of(spec.layers[0].attention, block_size, dtype, fp8_kv=fp8_kv)
