"""Self-attention over the paged KV cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from quire.backends.generic import sigmoid
from quire.backends.ops import (
    AttentionInputs,
    AttentionStep,
    HeadNorms,
    HeadShape,
    Kernels,
    PlannedAttention,
    RowOp,
    StateStep,
)
from quire.layer_plan import QueryGrowth
from quire.layers.adapted import AdaptedHeads
from quire.layers.batch import Batch
from quire.layers.cross import Heard
from quire.layers.linear import Linear
from quire.layers.overlay import Overlay
from quire.layers.own_chunks import apart_by_chunk
from quire.layers.rotary import Turn
from quire.layers.tp import TensorParallel


class Kind(NamedTuple):
    """What the attention of a pass is planned for, once for all layers that have it in common: the
    block table that is read, the window, the heads, and the chunks."""

    table: int
    window: int | None
    shape: HeadShape
    chunk: int | None = None


def attention_inputs(batch: Batch, table: int = 0) -> AttentionInputs:
    """What the kernels need of a batch, for the layers that read one block table."""
    return AttentionInputs(
        query_starts=batch.query_starts,
        context_lens=batch.context_lens,
        tables=batch.tables[table],
        slots=batch.slots[table],
        num_prefill=batch.num_prefill,
        prefixes=tuple(
            (prefix.blocks[table], prefix.members)
            for prefix in batch.prefixes
            if table < len(prefix.blocks)
        ),
        longest_query=batch.longest_query,
        longest_context=batch.longest_context,
    )


def planned(kernels: Kernels, kind: Kind, inputs: AttentionInputs) -> PlannedAttention:
    """The attention of a pass for all layers of a kind."""
    if kind.chunk is not None:
        inputs = apart_by_chunk(inputs, kind.chunk, kind.shape.block_size)
    return kernels.of_heads(kind.shape).plan_attention(inputs, kind.window)


@dataclass(frozen=True, slots=True)
class Pass:
    """What all layers of one forward pass share: the positions of its tokens, cos and sin of each
    rope, slots by block table, the planned attention by kind, encoder rows that replace embeddings
    (`overlay`), states by block table, encoded sounds (`heard`), and embeddings for single
    layers."""

    positions: Tensor
    turns: tuple[Turn, ...]
    slots: tuple[Tensor, ...]
    attention: Mapping[Kind, AttentionStep]
    overlay: Overlay | None = None
    states: Mapping[int, StateStep] = field(default_factory=dict)
    heard: Heard | None = None
    layer_embeddings: Tensor | None = None


def unchanged(qk: Tensor) -> Tensor:
    """q and k are left as they are."""
    return qk


def grown(growth: QueryGrowth, positions: Tensor) -> Tensor:
    """The factors of queries at positions [T], float32 [T]."""
    stretches = ((positions + growth.first) // growth.original_max_len).float()
    return 1 + growth.beta * torch.log(1 + stretches)


def weighted_by_both(q: Tensor, weights: tuple[Tensor, Tensor]) -> Tensor:
    """Queries [T, heads, D] times weights [D] of their norm and of the norm of keys: a product of a
    query and a key, which are not multiplied with theirs, is then the same."""
    by = weights[0].float() * weights[1].float()
    return (q.float() * by).to(q.dtype)


@dataclass(frozen=True, slots=True)
class Values:
    """The values among the heads of the first product: `count` of them from number `first` on,
    normed if there is a norm."""

    first: int
    count: int | None = None  # None: all that are left
    norm: RowOp | None = None

    def __call__(self, qkv: Tensor) -> Tensor:
        last = None if self.count is None else self.first + self.count
        values = qkv[:, self.first : last]
        return values if self.norm is None else self.norm(values)


class Attention:
    """One layer's attention: project, rotate, store keys and values, attend, project back."""

    def __init__(
        self,
        shape: HeadShape,
        qkv: Linear,
        out: Linear,
        *,
        window: int | None,
        rope: int,
        tp: TensorParallel,
        norms: HeadNorms | None = None,
        heads: RowOp = unchanged,
        growth: QueryGrowth | None = None,
        weights: tuple[Tensor, Tensor] | None = None,
        sinks: Tensor | None = None,
        gate: Linear | None = None,
        adapted: AdaptedHeads | None = None,
        values: Values | None = None,
        inner: RowOp = unchanged,
        chunk: int | None = None,
    ) -> None:
        """`rope`: index into the model's ropes. `norms`: norms of q and k that the kernel applies
        before it rotates. `heads`: applied to q and k before that kernel. `growth`: makes queries
        at far positions larger. `weights`: of norms of q and k behind the rotation, whose division
        `norms` makes before it. `gate`: its sigmoid is multiplied with the attended values.
        `adapted`: norms q and k in place of `norms` where adapters have norms of their own.
        `values`: how values are made, where not as a third part of the first product. `inner`:
        applied to what was attended, before the last product. `chunk`: as in an AttentionPlan."""
        self.shape, self.qkv, self.heads, self.out = shape, qkv, heads, out
        self.window, self.rope, self.norms, self.tp = window, rope, norms, tp
        self.growth, self.sinks, self.gate, self.adapted = growth, sinks, gate, adapted
        self.weights, self.inner, self.chunk = weights, inner, chunk
        self.table = 0  # its block table, set by Decoder.use_groups
        self.num_turned = shape.num_heads + shape.num_kv_heads
        self.values = values or Values(self.num_turned)

    @property
    def products(self) -> tuple[Linear, Linear]:
        """The first and the last product of the layer."""
        return self.qkv, self.out

    @property
    def kind(self) -> Kind:
        return Kind(self.table, self.window, self.shape, self.chunk)

    def __call__(self, x: Tensor, shared: Pass, keys: Tensor, values: Tensor) -> Tensor:
        qkv = self.qkv(x).view(x.shape[0], -1, self.shape.head_dim)  # q, k, v heads
        step = shared.attention[self.kind]
        heads, norms = self.heads, self.norms
        if self.adapted is not None and self.adapted.are_changed:
            heads, norms = self.adapted.norm, None
        qk = heads(qkv[:, : self.num_turned])
        v, turn = self.values(qkv), shared.turns[self.rope]
        q = step.rope_and_store(qk, v, *turn, keys, values, norms)
        if self.weights is not None:
            q = weighted_by_both(q, self.weights)
        if self.growth is not None:
            q = q * grown(self.growth, shared.positions)[:, None, None].to(q.dtype)
        attended = step.attend(q, keys, values, self.sinks)
        if self.gate is not None:
            attended = attended * sigmoid(self.gate(x).float()).to(x.dtype)
        return self.tp.all_reduce(self.out(self.inner(attended)))
