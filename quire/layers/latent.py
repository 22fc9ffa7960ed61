"""Attention whose keys and values are kept as one row a token, of which each head makes its own.

The row is never made into heads: a query's product with a key that is itself a product of the row
is one of the row with the query brought there, and what weighs values is applied to rows, and
brought to values afterwards. So all heads attend to one KV head, which is the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from quire.backends.ops import HeadNorms, HeadShape, Kernels, LatentRows, RowNorm, RowOp
from quire.layer_plan import LatentPlan
from quire.layers.attention import Kind, Pass
from quire.layers.linear import Linear
from quire.layers.norm import Norm
from quire.layers.tp import TensorParallel


class NarrowQueries:
    """Queries by way of fewer numbers, which are normed."""

    def __init__(self, down: Linear, norm: Norm, up: Linear) -> None:
        self.down, self.norm, self.up = down, norm, up

    def __call__(self, x: Tensor) -> Tensor:
        return self.up(self.norm(self.down(x)))


class HeadProducts:
    """A product of its own for each head: [T, heads, K] into [T, heads, N]."""

    def __init__(self, kernels: Kernels, products: Sequence[Linear]) -> None:
        self.products = tuple(products)
        self._multiply = kernels.make_head_products([one.multiply for one in products])

    def __call__(self, x: Tensor, out: Tensor) -> None:
        self._multiply(x, out)


class LatentPairs:
    """The weight [heads * (plain + value), kv_rank] that both kinds of products are made of."""

    def __init__(self, plan: LatentPlan, to_rows: HeadProducts, to_values: HeadProducts) -> None:
        self.plan, self.to_rows, self.to_values = plan, to_rows, to_values

    def write_rows(self, first: int, rows: Tensor) -> None:
        """Rows of whole products, one or several."""
        plan, at = self.plan, 0
        while at < len(rows):
            head, inside = divmod(first + at, plan.pair_dims)
            if inside == 0:
                self.to_rows.products[head].write_rows(0, rows[at : at + plan.plain_dims].T)
                at += plan.plain_dims
            else:
                self.to_values.products[head].write_rows(0, rows[at : at + plan.value_dims])
                at += plan.value_dims

    def tensors(self) -> tuple[Tensor, ...]:
        both = (*self.to_rows.products, *self.to_values.products)
        return tuple(tensor for product in both for tensor in product.tensors())


@dataclass(frozen=True, slots=True)
class LatentParts:
    """What a layer multiplies with: hidden states to queries, hidden states to the row, its norm,
    the first part of queries to rows, rows to values, and values back to hidden states."""

    queries: RowOp
    down: Linear
    norm: RowNorm
    to_rows: HeadProducts
    to_values: HeadProducts
    out: Linear


class LatentAttention:
    """One layer's attention: make the row, turn, store, attend to rows, project back."""

    def __init__(
        self,
        kernels: Kernels,
        shape: HeadShape,
        plan: LatentPlan,
        parts: LatentParts,
        *,
        rope: int,
        tp: TensorParallel,
    ) -> None:
        """`rope`: which of the pass's turns is its own."""
        self.kernels, self.shape, self.plan, self.parts = kernels, shape, plan, parts
        self.rope, self.tp = rope, tp
        self.norms: HeadNorms | None = None  # no head is normed where it is turned
        self.group = 0  # of layers whose KV lies in the same blocks; see Decoder.use_groups

    @property
    def kind(self) -> Kind:
        return self.group, None

    @property
    def products(self) -> tuple[Linear, Linear]:
        """Two of those with weights of many rows: that of the row, and the last."""
        return self.parts.down, self.parts.out

    def __call__(self, x: Tensor, shared: Pass, keys: Tensor, values: Tensor) -> Tensor:
        """`values` are not looked at: they are in `keys`."""
        plan, parts, count = self.plan, self.parts, x.shape[0]
        turn = shared.turns[self.rope]
        heads, slots = self.shape.num_heads, shared.slots[self.group]
        given = parts.queries(x).view(count, heads, plan.query_dims)
        latents = LatentRows(given, parts.down(x), parts.norm, *turn)
        q = self.kernels.turn_latents(latents, slots, keys)
        parts.to_rows(given[..., : plan.plain_dims], q[..., : plan.kv_rank])
        made = shared.attention[self.kind].attend(q, keys, keys)
        rows = made.view(count, heads, -1)[..., : plan.kv_rank]
        values = x.new_empty(count, heads, plan.value_dims)
        parts.to_values(rows, values)
        return self.tp.all_reduce(parts.out(values.flatten(1)))
