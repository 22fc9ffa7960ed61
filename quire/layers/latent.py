"""Multi-head latent attention: of each token one row is kept, from which keys and values are made.

These are never computed. A head's key is A r for a row r, and q . (A r) = (A^T q) . r: so `to_rows`
multiplies queries with A^T, attention runs over the rows themselves, and `to_values` multiplies the
weighted sum of rows with the head's value weight. So all heads attend to one KV head: the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.backends.ops import HeadNorms, HeadShape, HeadsOp, Kernels, LatentRows, RowNorm, RowOp
from quire.layer_plan import LatentPlan
from quire.layers.attention import Kind, Pass
from quire.layers.linear import Linear
from quire.layers.norm import Norm
from quire.layers.tp import TensorParallel


class NarrowQueries:
    """Queries made in two products, with a norm of the narrower result between them."""

    def __init__(self, down: Linear, norm: Norm, up: Linear) -> None:
        self.down, self.norm, self.up = down, norm, up

    def __call__(self, x: Tensor) -> Tensor:
        return self.up(self.norm(self.down(x)))


class HeadProducts:
    """A separate product for each head: [T, heads, K] into [T, heads, N]."""

    def __init__(self, kernels: Kernels, products: Sequence[Linear]) -> None:
        self.products = tuple(products)
        self._multiply = kernels.make_head_products([one.multiply for one in products])

    def __call__(self, x: Tensor, out: Tensor) -> None:
        self._multiply(x, out)


class LatentPairs:
    """The weight [heads * (plain + value), kv_rank], stored in the products of both kinds."""

    def __init__(self, plan: LatentPlan, to_rows: HeadProducts, to_values: HeadProducts) -> None:
        self.plan, self.to_rows, self.to_values = plan, to_rows, to_values

    def write_rows(self, first: int, rows: Tensor) -> None:
        """Overwrite rows of the weight: the whole plain or value rows of one or several heads."""
        plan, at = self.plan, 0
        while at < len(rows):
            head, inside = divmod(first + at, plan.pair_dims)
            if inside == 0:
                self.to_rows.products[head].write_rows(0, rows[at : at + plan.plain_dims].T)
                at += plan.plain_dims
            else:
                self.to_values.products[head].write_rows(0, rows[at : at + plan.value_dims])
                at += plan.value_dims

    def read_rows(self, first: int, count: int) -> Tensor:
        """Of as many rows as write_rows takes."""
        plan, found = self.plan, list[Tensor]()
        while (at := sum(map(len, found))) < count:
            head, inside = divmod(first + at, plan.pair_dims)
            if inside == 0:
                found.append(self.to_rows.products[head].read_rows(0, plan.kv_rank).T)
            else:
                found.append(self.to_values.products[head].read_rows(0, plan.value_dims))
        return torch.cat(found)

    def tensors(self) -> tuple[Tensor, ...]:
        both = (*self.to_rows.products, *self.to_values.products)
        return tuple(tensor for product in both for tensor in product.tensors())


@dataclass(frozen=True, slots=True)
class LatentParts:
    """Products and norm of a layer: hidden states to queries and to the row (`down`), queries to
    the space of rows, sums of rows to values, values to hidden states (`out`)."""

    queries: RowOp
    down: Linear
    norm: RowNorm
    to_rows: HeadsOp
    to_values: HeadsOp
    out: Linear


class LatentAttention:
    """One layer's attention: make the row, rotate its end, store it, attend to rows, project
    back."""

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
        """`rope`: index into the model's ropes."""
        self.kernels, self.shape, self.plan, self.parts = kernels, shape, plan, parts
        self.rope, self.tp = rope, tp
        self.norms: HeadNorms | None = None  # the kernel that rotates norms no heads
        self.table = 0  # its block table, set by Decoder.use_groups

    @property
    def kind(self) -> Kind:
        return Kind(self.table, None, self.shape)

    @property
    def products(self) -> tuple[Linear, Linear]:
        """Two of the products with many rows of weights: `down` and the last."""
        return self.parts.down, self.parts.out

    def __call__(self, x: Tensor, shared: Pass, keys: Tensor, values: Tensor) -> Tensor:
        """`values` is not used: the values are a part of the rows in `keys`."""
        plan, parts, count = self.plan, self.parts, x.shape[0]
        turn = shared.turns[self.rope]
        heads, slots = self.shape.num_heads, shared.slots[self.table]
        given = parts.queries(x).view(count, heads, plan.query_dims)
        latents = LatentRows(given, parts.down(x), parts.norm, *turn)
        q = self.kernels.rotate_latents(latents, slots, keys)
        parts.to_rows(given[..., : plan.plain_dims], q[..., : plan.kv_rank])
        made = shared.attention[self.kind].attend(q, keys, keys)
        rows = made.view(count, heads, -1)[..., : plan.kv_rank]
        values = x.new_empty(count, heads, plan.value_dims)
        parts.to_values(rows, values)
        return self.tp.all_reduce(parts.out(values.flatten(1)))
