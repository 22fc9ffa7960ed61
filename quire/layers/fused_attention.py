"""Self-attention whose norms, turns and KV writes are one kernel."""

from __future__ import annotations

from torch import Tensor

from quire.backends.triton.heads import HeadNorms, norm_rope_store
from quire.layers.attention import Attention, NormedHeads, Pass


class FusedAttention(Attention):
    """Computes what `Attention` does, from the packed projection in one launch."""

    def __init__(self, plain: Attention) -> None:
        super().__init__(
            plain.shape, plain.qkv, plain.heads, plain.out, window=plain.window, tp=plain.tp
        )
        self.norms: HeadNorms | None = None
        if isinstance(plain.heads, NormedHeads):
            q_norm, k_norm = plain.heads.q_norm, plain.heads.k_norm
            self.norms = HeadNorms(q_norm.weight, k_norm.weight, q_norm.eps)

    def __call__(self, x: Tensor, shared: Pass, keys: Tensor, values: Tensor) -> Tensor:
        qkv = self.qkv(x).view(x.shape[0], -1, self.shape.head_dim)
        q = norm_rope_store(
            qkv, shared.cos, shared.sin, shared.slots, keys, values, self.shape, self.norms
        )
        step = shared.attention[self.window]
        return self.tp.all_reduce(self.out(step.attend(q, keys, values)))
