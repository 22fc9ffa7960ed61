"""Self-attention whose norms, turns and KV writes are one kernel."""

from __future__ import annotations

from torch import Tensor

from quire.backends.triton.heads import HeadNorms, norm_rope_store
from quire.layers.attention import Attention, NormedHeads, Pass, PlainHeads


class FusedAttention(Attention):
    """Computes what `Attention` does, from the packed projection in one launch."""

    def __init__(self, plain: Attention, norms: HeadNorms | None) -> None:
        super().__init__(
            *(plain.shape, plain.qkv, plain.heads, plain.out),
            window=plain.window,
            rope=plain.rope,
            tp=plain.tp,
        )
        self.norms = norms

    def __call__(self, x: Tensor, shared: Pass, keys: Tensor, values: Tensor) -> Tensor:
        qkv = self.qkv(x).view(x.shape[0], -1, self.shape.head_dim)
        q = norm_rope_store(
            qkv, *shared.turns[self.rope], shared.slots, keys, values, self.shape, self.norms
        )
        step = shared.attention[self.window]
        return self.tp.all_reduce(self.out(step.attend(q, keys, values)))


def fused(plain: Attention) -> Attention:
    """The same attention in fewer launches; as it is where its heads are normed in a way that the
    kernel does not know."""
    if isinstance(plain.heads, PlainHeads):
        return FusedAttention(plain, None)
    norms = plain.heads.rms_norms() if isinstance(plain.heads, NormedHeads) else None
    if norms is None:
        return plain
    q_norm, k_norm = norms
    return FusedAttention(plain, HeadNorms(q_norm.weight, k_norm.weight, q_norm.eps))
