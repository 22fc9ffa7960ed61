"""The layers of a decode step with few rows: six launches each instead of nine.

What a pass of a Decoder computes, from the same weights, by the products of
kernels/triton/thin.py. Used where rows are so few that a step costs what reading the weights
and launching kernels costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.kernels.triton.heads import norm_rope_store
from quire.kernels.triton.kernels import PlainLinear
from quire.kernels.triton.thin import MOST_ROWS, Norm, Product, ThinProducts
from quire.layers.attention import Pass
from quire.layers.fused_attention import FusedAttention
from quire.layers.linear import Linear
from quire.layers.mlp import GatedMLP
from quire.layers.norm import RMSNorm
from quire.models.decoder import Decoder, Layer
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


class ThinPass:
    """Token ids to logits, for at most `most_rows` rows."""

    most_rows = MOST_ROWS

    def __init__(
        self, table: Tensor, first_norm: Norm, layers: Sequence[_ThinLayer], head: PlainLinear
    ) -> None:
        self._table, self._first_norm = table, first_norm
        self._layers, self._head = tuple(layers), head
        self._products = ThinProducts()

    @staticmethod
    def of(model: Decoder, spec: ModelSpec, dtype: torch.dtype) -> ThinPass | None:
        """The same model, or None where some part of it is not of the kind this knows."""
        if not products_of(spec, dtype):
            return None
        layers = [thin for thin in map(_thin, model.layers) if thin is not None]
        table, head = model.embedding.table, model.head.multiply
        if len(layers) < len(model.layers) or model.tp.size > 1:
            return None
        if not isinstance(head, PlainLinear) or not isinstance(table, Tensor):
            return None
        return ThinPass(table, _norm(model.first_norm), layers, head)

    def __call__(self, token_ids: Tensor, shared: Pass, cache: Tensor) -> Tensor:
        """The logits [rows, V]."""
        products, norm = self._products, self._first_norm
        stream = products.embed(token_ids, self._table)
        for layer, (keys, values) in zip(self._layers, cache, strict=True):
            attention = layer.attention
            qkv = products.normed(stream, norm, layer.qkv.weight, layer.qkv.bias)
            q = norm_rope_store(
                qkv.view(len(token_ids), -1, attention.shape.head_dim),
                *(shared.cos, shared.sin, shared.slots, keys, values),
                *(attention.shape, attention.norms),
            )
            attended = shared.attention[attention.window].attend(q, keys, values)
            products.add(stream, attended, layer.out.weight, layer.out.bias)
            gate_up = layer.gate_up
            opened = products.gated(stream, layer.mlp_norm, gate_up.weight, gate_up.bias)
            products.add(stream, opened, layer.down.weight, layer.down.bias)
            norm = layer.next_norm
        return products.normed(stream, norm, self._head.weight, self._head.bias)


def products_of(spec: ModelSpec, dtype: torch.dtype) -> tuple[Product, ...]:
    """The kinds of products that a pass of this model consists of; none in float16, which might
    not hold the sums that are normed only afterwards."""
    if dtype == torch.float16:
        return ()
    hidden, attended = spec.hidden_size, spec.num_heads * spec.head_dim
    heads = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
    inner, bias = spec.intermediate_size, spec.mlp_bias
    return (
        Product(heads, hidden, dtype, normed=True, gated=False, has_bias=spec.qkv_bias),
        Product(hidden, attended, dtype, normed=False, gated=False, has_bias=spec.o_bias),
        Product(inner, hidden, dtype, normed=True, gated=True, has_bias=bias),
        Product(hidden, inner, dtype, normed=False, gated=False, has_bias=bias),
        Product(spec.vocab_size, hidden, dtype, normed=True, gated=False, has_bias=False),
    )


def _thin(layer: Layer) -> _ThinLayer | None:
    attention, mlp = layer.attention, layer.mlp
    if not isinstance(attention, FusedAttention) or not isinstance(mlp, GatedMLP):
        return None
    linears = [_plain(x) for x in (attention.qkv, attention.out, mlp.gate_up, mlp.down)]
    qkv, out, gate_up, down = linears
    if qkv is None or out is None or gate_up is None or down is None:
        return None
    return _ThinLayer(
        attention, qkv, out, _norm(layer.mlp_norm), gate_up, down, _norm(layer.next_norm)
    )


def _plain(linear: Linear) -> PlainLinear | None:
    return linear.multiply if isinstance(linear.multiply, PlainLinear) else None


def _norm(norm: RMSNorm) -> Norm:
    return Norm(norm.weight, norm.eps)
