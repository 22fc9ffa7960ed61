"""The layers of a decode step with few rows: five launches each instead of nine.

What a pass of a Decoder computes, from the same weights, by the products of
backends/triton/small_batch.py. Used where rows are so few that a step costs what reading the
weights and launching kernels costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.backends.triton.heads import norm_rope_store
from quire.backends.triton.kernels import PlainLinear
from quire.backends.triton.small_batch import MOST_ROWS, Norm, ThinProducts, products_of
from quire.executor.cuda.triton_ops import PlannedDecode
from quire.layers.attention import Pass
from quire.layers.fused_attention import FusedAttention
from quire.layers.linear import Linear
from quire.layers.mlp import GatedMLP
from quire.layers.norm import Norm as AnyNorm
from quire.layers.norm import RMSNorm
from quire.models.decoder import Decoder
from quire.models.layers import Layer, PlainLayer
from quire.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class _ThinLayer:
    """The tensors of one layer, as the products want them."""

    attention: FusedAttention
    qkv: PlainLinear
    out: PlainLinear
    mlp_norm: Norm
    gate_up: PlainLinear
    down: PlainLinear
    next_norm: Norm


class SmallBatchPass:
    """Token ids to logits, for at most `most_rows` rows."""

    most_rows = MOST_ROWS

    def __init__(
        self, table: Tensor, first_norm: Norm, layers: Sequence[_ThinLayer], head: PlainLinear
    ) -> None:
        self._table, self._first_norm = table, first_norm
        self._layers, self._head = tuple(layers), head
        self._products = ThinProducts()

    @staticmethod
    def of(model: Decoder, spec: ModelSpec, dtype: torch.dtype) -> SmallBatchPass | None:
        """The same model, or None where some part of it is not of the kind this knows."""
        if not products_of(spec, dtype):
            return None
        layers = [
            small_batch
            for small_batch in map(_small_batch, model.layers)
            if small_batch is not None
        ]
        table, head = model.embedding.table, model.head.multiply
        if len(layers) < len(model.layers) or model.tp.size > 1:
            return None
        first = _norm(model.first_norm)
        if not isinstance(head, PlainLinear) or not isinstance(table, Tensor) or first is None:
            return None
        return SmallBatchPass(table, first, layers, head)

    def __call__(self, token_ids: Tensor, shared: Pass, cache: Tensor) -> Tensor:
        """The logits [rows, V]."""
        products, norm = self._products, self._first_norm
        stream = products.embed(token_ids, self._table)
        for layer, (keys, values) in zip(self._layers, cache, strict=True):
            attention = layer.attention
            qkv = products.normed(stream, norm, layer.qkv.weight, layer.qkv.bias)
            attended = _attended(attention, qkv, shared, keys, values)
            products.add(stream, attended, layer.out.weight, layer.out.bias)
            gate_up = layer.gate_up
            opened = products.gated(stream, layer.mlp_norm, gate_up.weight, gate_up.bias)
            products.add(stream, opened, layer.down.weight, layer.down.bias)
            norm = layer.next_norm
        return products.normed(stream, norm, self._head.weight, self._head.bias)


def _attended(
    attention: FusedAttention, qkv: Tensor, shared: Pass, keys: Tensor, values: Tensor
) -> Tensor:
    """Of the packed projection: in one launch, or two where rows share prefixes or KV is fp8.

    Whatever attention reads but `qkv` and the cache was made before the stream's tokens were
    embedded, by a kernel that begins when all before it is done; see jit.waiting.
    """
    step, turn = shared.attention[attention.window], (*shared.turns[attention.rope], shared.slots)
    if isinstance(step, PlannedDecode) and step.attention.takes_packed:
        return step.attention.attend_packed(qkv, *turn, keys, values, attention.norms)
    heads = qkv.view(qkv.shape[0], -1, attention.shape.head_dim)
    q = norm_rope_store(heads, *turn, keys, values, attention.shape, attention.norms)
    return step.attend(q, keys, values)


def _small_batch(layer: Layer) -> _ThinLayer | None:
    attention, mlp = layer.attention, layer.mlp
    if not isinstance(attention, FusedAttention) or not isinstance(mlp, GatedMLP):
        return None
    if not isinstance(layer, PlainLayer):
        return None
    norms = [_norm(norm) for norm in (layer.mlp_norm, layer.next_norm)]
    linears = [_plain(x) for x in (attention.qkv, attention.out, mlp.gate_up, mlp.down)]
    qkv, out, gate_up, down = linears
    if qkv is None or out is None or gate_up is None or down is None:
        return None
    mlp_norm, next_norm = norms
    if mlp_norm is None or next_norm is None:
        return None
    return _ThinLayer(attention, qkv, out, mlp_norm, gate_up, down, next_norm)


def _plain(linear: Linear) -> PlainLinear | None:
    return linear.multiply if isinstance(linear.multiply, PlainLinear) else None


def _norm(norm: AnyNorm) -> Norm | None:
    return Norm(norm.weight, norm.eps) if isinstance(norm, RMSNorm) else None
