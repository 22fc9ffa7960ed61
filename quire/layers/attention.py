"""Self-attention over the paged KV cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quire.backends.ops import AttentionInputs, AttentionStep, HeadNorms, HeadShape, RowOp
from quire.layers.batch import Batch
from quire.layers.linear import Linear
from quire.layers.norm import Norm
from quire.layers.rotary import Turn
from quire.layers.tp import TensorParallel


def attention_inputs(batch: Batch) -> AttentionInputs:
    """What the kernels need to know of a batch."""
    return AttentionInputs(
        query_starts=batch.query_starts,
        context_lens=batch.context_lens,
        tables=batch.tables,
        slots=batch.slots,
        num_prefill=batch.num_prefill,
        prefixes=tuple((prefix.blocks, prefix.members) for prefix in batch.prefixes),
        longest_query=batch.longest_query,
        longest_context=batch.longest_context,
    )


@dataclass(frozen=True, slots=True)
class Pass:
    """What all layers of one forward pass share: the positions of its tokens, their turns by each
    rope of the model, the slots their KV goes to and, by window, the attention of the pass."""

    positions: Tensor
    turns: tuple[Turn, ...]
    slots: Tensor
    attention: dict[int | None, AttentionStep]


def unchanged(qk: Tensor) -> Tensor:
    """q and k as the projection gave them."""
    return qk


class NormedHeads:
    """q and k normed head by head, by norms that kernels do not have where they turn heads."""

    def __init__(self, shape: HeadShape, q_norm: Norm, k_norm: Norm) -> None:
        self.num_heads, self.q_norm, self.k_norm = shape.num_heads, q_norm, k_norm

    def __call__(self, qk: Tensor) -> Tensor:
        q, k = qk[:, : self.num_heads], qk[:, self.num_heads :]
        return torch.cat([self.q_norm(q), self.k_norm(k)], dim=1)


class NormedWidths:
    """q normed over all its heads, and k likewise."""

    def __init__(self, shape: HeadShape, q_norm: Norm, k_norm: Norm) -> None:
        self.num_heads, self.q_norm, self.k_norm = shape.num_heads, q_norm, k_norm

    def __call__(self, qk: Tensor) -> Tensor:
        q, k = qk[:, : self.num_heads], qk[:, self.num_heads :]
        parts = [(q, self.q_norm(q.flatten(1))), (k, self.k_norm(k.flatten(1)))]
        return torch.cat([normed.view(plain.shape) for plain, normed in parts], dim=1)


class Attention:
    """One layer's attention: project, turn, store, attend, project back."""

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
    ) -> None:
        """`rope`: which of the pass's turns is its own; `norms`: what heads are normed with where
        they are turned; `heads`: what is done to q and k before that."""
        self.shape, self.qkv, self.heads, self.out = shape, qkv, heads, out
        self.window, self.rope, self.norms, self.tp = window, rope, norms, tp
        self.num_turned = shape.num_heads + shape.num_kv_heads

    def __call__(self, x: Tensor, shared: Pass, keys: Tensor, values: Tensor) -> Tensor:
        qkv = self.qkv(x).view(x.shape[0], -1, self.shape.head_dim)  # q, k, v heads
        step = shared.attention[self.window]
        qk = self.heads(qkv[:, : self.num_turned])
        v, turn = qkv[:, self.num_turned :], shared.turns[self.rope]
        q = step.rope_and_store(qk, v, *turn, keys, values, self.norms)
        return self.tp.all_reduce(self.out(step.attend(q, keys, values)))
