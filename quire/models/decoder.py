"""Decoder: one decoder-only transformer, built from parts by what its spec says.

Branches are taken while building; the forward pass has none. `Decoder` knows a Batch and a KV
cache, not where either comes from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.backends.cpu.native.kernels import NativeOps
from quire.backends.ops import HeadShape, Kernels
from quire.errors import CorruptModel
from quire.layer_plan import AttentionPlan, LayerPlan, MlpPlan
from quire.layers.attention import Attention, NormedHeads, Pass, PlainHeads, attention_inputs
from quire.layers.batch import Batch
from quire.layers.embedding import Embedding, shared_table
from quire.layers.linear import Linear, Matrix
from quire.layers.mlp import GatedMLP
from quire.layers.norm import RMSNorm
from quire.layers.norming_attention import NormingAttention
from quire.layers.rotary import Rotary
from quire.layers.tp import TensorParallel
from quire.spec import ModelSpec

Weights = dict[str, Tensor] | dict[str, Matrix]


@dataclass(frozen=True, slots=True)
class Layer:
    """One block of the decoder. `next_norm` is the norm after it, so that adding to the
    residual stream and norming what comes of it stay one op."""

    attention: Attention
    mlp_norm: RMSNorm
    mlp: GatedMLP
    next_norm: RMSNorm

    def __call__(
        self, normed: Tensor, residual: Tensor, shared: Pass, keys: Tensor, values: Tensor
    ) -> Tensor:
        attended = self.attention(normed, shared, keys, values)
        made = self.mlp(self.mlp_norm.after_adding(attended, residual))
        return self.next_norm.after_adding(made, residual)


class Decoder:
    """Token ids to hidden states, hidden states to logits."""

    def __init__(
        self,
        kernels: Kernels,
        embedding: Embedding,
        first_norm: RMSNorm,
        layers: Sequence[Layer],
        head: Linear,
        rotary: Rotary,
        tp: TensorParallel,
    ) -> None:
        self.kernels, self.embedding, self.first_norm = kernels, embedding, first_norm
        self.layers, self.head, self.rotary, self.tp = tuple(layers), head, rotary, tp
        self.windows = frozenset(layer.attention.window for layer in self.layers)

    def __call__(self, batch: Batch, cache: Tensor) -> Tensor:
        """The last hidden states [T, H], normed. cache [layers, 2, N, kv_heads, S, D]"""
        inputs = attention_inputs(batch)
        attention = {w: self.kernels.plan_attention(inputs, w) for w in self.windows}
        shared = Pass(*self.rotary(batch.positions), batch.slots, attention)
        return self.compute(batch.token_ids, shared, cache)

    def compute(self, token_ids: Tensor, shared: Pass, cache: Tensor) -> Tensor:
        """The same for a pass whose attention was planned before."""
        residual = self.embedding(token_ids)
        normed = self.first_norm(residual)
        for layer, (keys, values) in zip(self.layers, cache, strict=True):
            normed = layer(normed, residual, shared, keys, values)
        return normed

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, H] -> [R, V]"""
        return self.tp.all_gather(self.head(hidden))


def build_decoder(
    spec: ModelSpec,
    weights: Weights,
    kernels: Kernels,
    shape: HeadShape,
    *,
    max_len: int,
    tp: TensorParallel,
) -> Decoder:
    """Take the weights out of the dict, one by one, and put them where they belong.

    The dict is emptied on the way, so that a packed weight never lies beside its source.
    """
    parts = Parts(spec, weights, kernels, shape, tp)
    table = parts.matrix("embed.weight", spec.vocab_size, spec.hidden_size)
    norms = [parts.norm(f"layers.{i}.attn_norm", spec.hidden_size) for i in range(spec.num_layers)]
    norms.append(parts.norm("norm", spec.hidden_size))
    plans = spec.layers
    layers = [parts.layer(i, plan, norms[i + 1]) for i, plan in enumerate(plans)]
    tied = spec.tied_embeddings
    head = Linear(kernels, table if tied else parts.matrix("head.weight", *table.shape))
    return Decoder(
        kernels,
        Embedding(kernels, shared_table(table, head) if tied else table),
        norms[0],
        layers,
        head,
        Rotary(plans[0].attention.rope, spec.head_dim, max_len, table.device),
        tp,
    )


class Parts:
    """Makes layers out of named weights, which it takes out of their dict."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: Weights,
        kernels: Kernels,
        shape: HeadShape,
        tp: TensorParallel,
    ) -> None:
        self.spec, self.weights, self.kernels = spec, weights, kernels
        self.shape, self.tp = shape, tp

    def vector(self, name: str, size: int) -> Tensor:
        weight = self.matrix(name, size)
        if not isinstance(weight, Tensor):
            raise CorruptModel(f"the weight {name!r} is a matrix, not a vector.")
        return weight

    def matrix(self, name: str, *shape: int) -> Matrix:
        weight = self.weights.pop(name, None)
        if weight is None:
            raise CorruptModel(f"the weight {name!r} is missing.")
        if tuple(weight.shape) != shape:
            raise CorruptModel(
                f"the weight {name!r} has shape {list(weight.shape)}, not {list(shape)}."
            )
        return weight

    def norm(self, name: str, size: int) -> RMSNorm:
        return RMSNorm(self.kernels, self.vector(f"{name}.weight", size), self.spec.norm_eps)

    def linear(self, name: str, rows: int, columns: int, *, bias: bool) -> Linear:
        weight = self.matrix(f"{name}.weight", rows, columns)
        return Linear(self.kernels, weight, self.vector(f"{name}.bias", rows) if bias else None)

    def layer(self, index: int, plan: LayerPlan, next_norm: RMSNorm) -> Layer:
        return Layer(
            self.attention(f"layers.{index}.attn", plan.attention),
            self.norm(f"layers.{index}.mlp_norm", self.spec.hidden_size),
            self.mlp(f"layers.{index}.mlp", plan.mlp),
            next_norm,
        )

    def attention(self, name: str, plan: AttentionPlan) -> Attention:
        hidden, width = self.spec.hidden_size, plan.head_dim
        num_all = plan.num_heads + 2 * plan.num_kv_heads
        heads: PlainHeads | NormedHeads = PlainHeads()
        if plan.qk_norm:
            q_norm, k_norm = (self.norm(f"{name}.{x}_norm", width) for x in "qk")
            heads = NormedHeads(self.shape, q_norm, k_norm)
        attention = Attention(
            self.shape,
            self.linear(f"{name}.qkv", num_all * width, hidden, bias=plan.qkv_bias),
            heads,
            self.linear(f"{name}.o", hidden, plan.num_heads * width, bias=plan.o_bias),
            window=plan.window,
            tp=self.tp,
        )
        if isinstance(heads, NormedHeads) and isinstance(self.kernels, NativeOps):
            return NormingAttention(attention, heads)
        return attention

    def mlp(self, name: str, plan: MlpPlan) -> GatedMLP:
        hidden, inner, bias = self.spec.hidden_size, plan.width, plan.bias
        return GatedMLP(
            self.kernels,
            self.linear(f"{name}.gate_up", 2 * inner, hidden, bias=bias),
            self.linear(f"{name}.down", hidden, inner, bias=bias),
            self.tp,
        )


def head_shape(
    spec: ModelSpec, block_size: int, dtype: torch.dtype, *, fp8_kv: bool = False
) -> HeadShape:
    """The heads of a spec, as the kernels want to know them."""
    return HeadShape(spec.num_heads, spec.num_kv_heads, spec.head_dim, block_size, dtype, fp8_kv)
