"""Self-attention on a CPU whose heads are normed, turned and stored by one kernel in C."""

from __future__ import annotations

from torch import Tensor

from quire.backends.cpu.native.attention import HeadNorms, NativeAttention
from quire.layers.attention import Attention, Pass
from quire.layers.norm import RMSNorm


class NormingAttention(Attention):
    """Computes what `Attention` with normed heads does."""

    def __init__(self, plain: Attention, q_norm: RMSNorm, k_norm: RMSNorm) -> None:
        super().__init__(
            *(plain.shape, plain.qkv, plain.heads, plain.out),
            window=plain.window,
            rope=plain.rope,
            tp=plain.tp,
        )
        self.norms = HeadNorms(q_norm.weight, k_norm.weight, q_norm.eps)

    def __call__(self, x: Tensor, shared: Pass, keys: Tensor, values: Tensor) -> Tensor:
        step = shared.attention[self.window]
        if not isinstance(step, NativeAttention):  # planned by another set of kernels
            return super().__call__(x, shared, keys, values)
        qkv = self.qkv(x).view(x.shape[0], -1, self.shape.head_dim)
        qk, v = qkv[:, : self.num_turned], qkv[:, self.num_turned :]
        turn = shared.turns[self.rope]
        q = step.norm_rope_and_store(self.norms, qk, v, *turn, keys, values)
        return self.tp.all_reduce(self.out(step.attend(q, keys, values)))
