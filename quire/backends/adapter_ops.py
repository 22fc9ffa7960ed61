"""What LoRA adapters add to a product, on every device: y += B (A x), with A and B by line.

Adapters are in numbered slots of every product. A line uses what is in its slot, or nothing (-1).
With a factor f (DoRA) a line becomes f * (y - bias) + bias + B (A x), where B contains f already.
If an adapter has its own rows of a weight, these replace the base's rows before all that.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from quire.backends.linear import Gate, LinearOp
from quire.request import Ints


@dataclass(frozen=True, slots=True)
class Added:
    """What one adapter adds to rows first, first + 1, ... of one part of a product."""

    part: int
    first: int
    a: Tensor  # [rank, K]; of an embedding [rank, V]
    b: Tensor  # [rows, rank], times the scale
    factor: Tensor | None = None  # float32 [rows]

    @property
    def num_bytes(self) -> int:
        return self.a.nbytes + self.b.nbytes + (0 if self.factor is None else self.factor.nbytes)


@dataclass(frozen=True, slots=True)
class OwnNumbers:
    """An adapter's own numbers at a site: `weight` [n, K] replaces these `rows` int64 [n] of a
    product or an embedding (of a norm all of it, float32 [n]), and `offset`, float32 [N], is added
    to the result."""

    rows: Tensor | None = None
    weight: Tensor | None = None
    offset: Tensor | None = None

    @property
    def num_bytes(self) -> int:
        return sum(one.nbytes for one in (self.rows, self.weight, self.offset) if one is not None)


class AdapterLines(Protocol):
    """The slot of each line of a product, in the form that its products need."""

    def take(self, lines: Ints) -> AdapterLines:
        """The slots of these lines, in this order."""


class AdaptedProduct(Protocol):
    """The slots of one product."""

    def load(self, slot: int, added: Sequence[Added]) -> None:
        """Put an adapter into a slot. An empty `added` clears it: its lines stay as they are."""

    def load_own(self, slot: int, own: OwnNumbers) -> None:
        """Add an adapter's own numbers to a slot, after `load`."""

    def add(self, x: Tensor, y: Tensor, lines: AdapterLines) -> Tensor:
        """y [T, N] of x [T, K] (for an embedding: of token ids [T]) with what adapters add, in
        place."""

    def multiply(self, base: LinearOp, x: Tensor, lines: AdapterLines) -> Tensor:
        """The product base(x), with what adapters add."""
        return self.add(x, base(x), lines)

    def multiply_gated(self, base: LinearOp, gate: Gate, x: Tensor, lines: AdapterLines) -> Tensor:
        """The product base(x), with what adapters add, followed by activation(gate) * up."""
        return gate.opened(self.multiply(base, x, lines))

    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that it keeps on its device."""

    def release(self) -> None:
        """Empty all slots and free their memory until one is loaded."""

    @property
    def variant(self) -> Hashable:
        """Which kernels `add` launches, as far as loaded adapters decide that; 0: none."""


class AdaptedPairs(Protocol):
    """The slots of a weight [heads * (plain + value), K] that is used in two ways: the first rows
    of a head multiply its queries into the space of rows (of latents), x (W + B A); the others make
    values of rows, (W + B A) x. So A and B change sides in the former."""

    def load(self, slot: int, added: Sequence[Added]) -> None:
        """Put an adapter into a slot. An empty `added` clears it."""

    def add_to_rows(self, x: Tensor, y: Tensor, lines: AdapterLines) -> None:
        """Add to y [T, heads, K] of x [T, heads, plain] what adapters add, in place."""

    def add_to_values(self, x: Tensor, y: Tensor, lines: AdapterLines) -> None:
        """Add to y [T, heads, value] of x [T, heads, K] what adapters add, in place."""

    def release(self) -> None: ...

    @property
    def variant(self) -> Hashable: ...


class ExpertSlots(Protocol):
    def load(
        self,
        slot: int,
        ups: Mapping[int, Sequence[Added]],
        downs: Mapping[int, Sequence[Added]],
    ) -> None:
        """Put an adapter into a slot: what it adds to each expert."""

    def compute(self, x: Tensor, chosen: Tensor, scores: Tensor, lines: AdapterLines) -> Tensor:
        """The experts' result (see ExpertsOp), with what adapters add."""

    def release(self) -> None: ...

    @property
    def variant(self) -> Hashable: ...


class AdapterKernels(Protocol):
    """Makes slots for products, and lines for them, on one device."""

    def product(
        self,
        rows: tuple[int, ...],
        columns: int,
        bias: Tensor | None,
        *,
        seldom: bool,
        base: LinearOp | None = None,
    ) -> AdaptedProduct:
        """Slots of a product with these numbers of rows by part, to whose result `bias` was added.
        `seldom`: few adapters change it, so memory is allocated only then. `base`: the product's
        op, if known, whose weight may be stored elsewhere."""

    def embedding(self, num_rows: int, width: int) -> AdaptedProduct:
        """Slots of an embedding with so many rows."""

    def norm(
        self, with_weight: Callable[[Tensor], Callable[[Tensor], Tensor]], weight: Tensor
    ) -> AdaptedProduct:
        """Slots of a norm with this weight; `with_weight` makes the norm with another weight."""

    def pairs(self, heads: int, plain: int, value: int) -> AdaptedPairs:
        """Slots of the products of so many heads, each with these numbers of rows."""

    def experts(
        self,
        base: Callable[[Tensor, Tensor, Tensor], Tensor],
        up_rows: tuple[int, ...],
        hidden: int,
    ) -> ExpertSlots | None:
        """Slots of all experts, whose first product has these rows by part. None if each product of
        each expert is to have its own slots."""

    def lines(self, slots: Ints) -> AdapterLines | None:
        """Lines with these slots, -1 for none. None if no line has one."""


@dataclass(frozen=True, slots=True)
class AdapterRoom:
    """The room for adapters on a device: so many at once, each of at most this rank."""

    num_slots: int
    max_rank: int
    dtype: torch.dtype
    device: torch.device
