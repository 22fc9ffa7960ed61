"""Attention to keys and values that another layer has stored."""

from __future__ import annotations

from torch import Tensor

from quire.backends.generic import rotate
from quire.backends.ops import HeadShape, RowOp
from quire.layers.attention import Kind, Pass
from quire.layers.linear import Linear
from quire.layers.tp import TensorParallel


class ReadingAttention:
    """Project to queries, rotate them, attend, project back."""

    def __init__(
        self,
        shape: HeadShape,
        query: Linear,
        norm: RowOp,
        out: Linear,
        *,
        window: int | None,
        rope: int,
        tp: TensorParallel,
    ) -> None:
        """`norm`: applied to each head [T, heads, D]. `rope`: index into the model's rotations."""
        self.shape, self.query, self.norm, self.out = shape, query, norm, out
        self.window, self.rope, self.tp = window, rope, tp
        self.table = 0  # the block table of the layer whose KV it reads, set by Decoder.use_groups

    @property
    def products(self) -> tuple[Linear, Linear]:
        return self.query, self.out

    @property
    def kind(self) -> Kind:
        return Kind(self.table, self.window, self.shape)

    def __call__(self, x: Tensor, shared: Pass, keys: Tensor, values: Tensor) -> Tensor:
        heads = self.query(x).view(x.shape[0], -1, self.shape.head_dim)
        q = rotate(self.norm(heads), *shared.turns[self.rope])
        attended = shared.attention[self.kind].attend(q, keys, values)
        return self.tp.all_reduce(self.out(attended))
