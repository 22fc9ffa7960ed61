"""The layers of a decode step with few rows: five launches each instead of nine.

What a pass of a Decoder computes, from the same weights, by the products of
backends/triton/small_batch.py. Used where rows are so few that a step costs what reading the
weights and launching kernels costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor

from quire.backends.ops import AttentionStep, HeadNorms
from quire.backends.triton.small_batch import MOST_ROWS, Norm, ThinProducts, products_of
from quire.layers.attention import Attention, Pass
from quire.models.decoder import Decoder
from quire.models.model import KVCache
from quire.spec import ModelSpec
from quire.weights.names import weights_of


class PackedStep(AttentionStep, Protocol):
    """The attention of a decode step that is planned on a GPU."""

    def attend_packed(
        self,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        keys: Tensor,
        values: Tensor,
        norms: HeadNorms | None,
    ) -> Tensor:
        """What rope_and_store and then attend compute, of the packed projection
        [rows, (heads + 2 kv_heads) * D], in fewer launches where that is built."""


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A weight and its bias as they came."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class _ThinLayer:
    """The tensors of one layer, as the products want them."""

    attention: Attention
    qkv: _Matrix
    out: _Matrix
    mlp_norm: Norm
    gate_up: _Matrix
    down: _Matrix
    next_norm: Norm


class SmallBatchPass:
    """Token ids to logits, for at most `most_rows` rows."""

    most_rows = MOST_ROWS

    def __init__(
        self, table: Tensor, first_norm: Norm, layers: Sequence[_ThinLayer], head: Tensor
    ) -> None:
        self._table, self._first_norm = table, first_norm
        self._layers, self._head = tuple(layers), head
        self._products = ThinProducts()

    @staticmethod
    def of(model: Decoder, spec: ModelSpec, dtype: torch.dtype) -> SmallBatchPass | None:
        """The same model, by the plans of its layers; None where they say something that this does
        not know, or where weights do not lie as they came."""
        tensors = _plain_tensors(model, spec)
        if not products_of(spec, dtype) or tensors is None or model.tp.size > 1:
            return None

        def norm(name: str) -> Norm:
            return Norm(tensors[f"{name}.weight"], spec.norm_eps)

        def matrix(name: str) -> _Matrix:
            return _Matrix(tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))

        norms = [norm(f"layers.{i}.attn_norm") for i in range(spec.num_layers)] + [norm("norm")]
        layers = [
            _ThinLayer(
                attention=cast(Attention, layer.attention),  # of a plain model
                qkv=matrix(f"layers.{i}.attn.qkv"),
                out=matrix(f"layers.{i}.attn.o"),
                mlp_norm=norm(f"layers.{i}.mlp_norm"),
                gate_up=matrix(f"layers.{i}.mlp.gate_up"),
                down=matrix(f"layers.{i}.mlp.down"),
                next_norm=norms[i + 1],
            )
            for i, layer in enumerate(model.layers)
        ]
        table = tensors["embed.weight"]
        head = table if spec.tied_embeddings else tensors["head.weight"]
        return SmallBatchPass(table, norms[0], layers, head)

    def __call__(self, token_ids: Tensor, shared: Pass, cache: KVCache) -> Tensor:
        """The logits [rows, V]."""
        products = self._products
        stream = products.embed(token_ids, self._table, self._first_norm)
        for layer, (keys, values) in zip(self._layers, cache, strict=True):
            attention, out, down = layer.attention, layer.out, layer.down
            qkv = products.normed(stream, layer.qkv.weight, layer.qkv.bias)
            # Whatever attention reads but `qkv` and the cache was made before the stream's tokens
            # were embedded, by a kernel that begins when all before it is done; see jit.waiting.
            step = cast(PackedStep, shared.attention[attention.kind])
            turn = shared.turns[attention.rope]
            attended = step.attend_packed(qkv, *turn, keys, values, attention.norms)
            products.add(stream, attended, out.weight, out.bias, layer.mlp_norm)
            opened = products.gated(stream, layer.gate_up.weight, layer.gate_up.bias)
            products.add(stream, opened, down.weight, down.bias, layer.next_norm)
        return products.normed(stream, self._head)


def _plain_tensors(model: Decoder, spec: ModelSpec) -> dict[str, Tensor] | None:
    """Every weight by its name, if all of them lie as they came."""
    found = {}
    for weight in weights_of(spec):
        tensors = model.places[weight.name][0].tensors()
        if len(tensors) != 1 or tuple(tensors[0].shape) != weight.shape:
            return None
        found[weight.name] = tensors[0]
    return found
