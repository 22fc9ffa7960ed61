"""What LoRA adapters add to a product, as every device has it: y += B (A x), each line by its own.

Adapters lie in numbered slots of every product; a line takes what is in its slot, or nothing (-1).
With a factor f (DoRA) a line becomes f * (y - bias) + bias + B (A x), with f in B already. Rows of
a weight that an adapter has of its own are multiplied with in place of the base's, before all that.
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
    """What one adapter adds to one part of a product: rows first, first + 1, ..."""

    part: int
    first: int
    a: Tensor  # [rank, K]; of an embedding [rank, V]
    b: Tensor  # [rows, rank], the scale in it
    factor: Tensor | None = None  # float32 [rows]

    @property
    def num_bytes(self) -> int:
        return self.a.nbytes + self.b.nbytes + (0 if self.factor is None else self.factor.nbytes)


@dataclass(frozen=True, slots=True)
class OwnNumbers:
    """What one adapter has at a site in place of the base's numbers: `weight` [n, K] for these
    `rows` int64 [n] of a product or an embedding (of a norm float32 [n] for all), and `offset`,
    float32 [N], which is added to what comes out."""

    rows: Tensor | None = None
    weight: Tensor | None = None
    offset: Tensor | None = None

    @property
    def num_bytes(self) -> int:
        return sum(one.nbytes for one in (self.rows, self.weight, self.offset) if one is not None)


class AdapterLines(Protocol):
    """Which slot each line of a product takes, in the form that its products want."""

    def take(self, lines: Ints) -> AdapterLines:
        """The same of some lines, in this order."""


class AdaptedProduct(Protocol):
    """One product's slots."""

    def load(self, slot: int, added: Sequence[Added]) -> None:
        """The slot holds this from now on; with nothing, lines of it stay as they are."""

    def load_own(self, slot: int, own: OwnNumbers) -> None:
        """The slot, loaded before, has these numbers of its own as well."""

    def add(self, x: Tensor, y: Tensor, lines: AdapterLines) -> Tensor:
        """y [T, N] of x [T, K] (of an embedding: of token ids [T]) with what adapters add to it.
        `y` may be written to."""

    def multiply(self, base: LinearOp, x: Tensor, lines: AdapterLines) -> Tensor:
        """The same of the product that `base` makes of x."""
        return self.add(x, base(x), lines)

    def multiply_gated(self, base: LinearOp, gate: Gate, x: Tensor, lines: AdapterLines) -> Tensor:
        """The same, and what the gate lets through of it."""
        return gate.opened(self.multiply(base, x, lines))

    def tensors(self) -> tuple[Tensor, ...]:
        """What it keeps on its device."""

    def release(self) -> None:
        """Every slot is empty, and its memory given back until one is loaded."""

    @property
    def variant(self) -> Hashable:
        """Which kernels `add` launches, as far as that depends on what was loaded; 0: none."""


class ExpertSlots(Protocol):
    def load(
        self,
        slot: int,
        ups: Mapping[int, Sequence[Added]],
        downs: Mapping[int, Sequence[Added]],
    ) -> None:
        """The slot holds this from now on, by expert."""

    def compute(self, x: Tensor, chosen: Tensor, scores: Tensor, lines: AdapterLines) -> Tensor:
        """What the experts make of x (see ExpertsOp), with what adapters add."""

    def release(self) -> None: ...

    @property
    def variant(self) -> Hashable: ...


class AdapterKernels(Protocol):
    """Makes products that hold adapters, and lines for them, on one device."""

    def product(
        self,
        rows: tuple[int, ...],
        columns: int,
        bias: Tensor | None,
        *,
        seldom: bool,
        base: LinearOp | None = None,
    ) -> AdaptedProduct:
        """Slots of a product of so many rows, part by part, to which its op has added `bias`.
        `seldom`: few adapters change it, so memory is taken when one does. `base`: that op, if it
        is known, whose weight may be put elsewhere."""

    def embedding(self, num_rows: int, width: int) -> AdaptedProduct:
        """Slots of an embedding, a table of so many rows."""

    def norm(
        self, with_weight: Callable[[Tensor], Callable[[Tensor], Tensor]], weight: Tensor
    ) -> AdaptedProduct:
        """Slots of a norm of this weight; `with_weight` makes it for another."""

    def experts(
        self,
        base: Callable[[Tensor, Tensor, Tensor], Tensor],
        up_rows: tuple[int, ...],
        hidden: int,
    ) -> ExpertSlots | None:
        """Slots of all experts, whose first product has so many rows, part by part; None where
        each product of each expert is to have its own."""

    def lines(self, slots: Ints) -> AdapterLines | None:
        """For lines that take these slots, -1 for none; None where no line takes one."""


@dataclass(frozen=True, slots=True)
class AdapterRoom:
    """How much is kept on a device: so many adapters at once, each of at most this rank."""

    num_slots: int
    max_rank: int
    dtype: torch.dtype
    device: torch.device
