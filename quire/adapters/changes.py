"""How an adapter changes the parts of a model: the entries of its plan. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quire.adapters.forms import Formed
from quire.adapters.sites import SitePart
from quire.weights.formats import StoredTensor


@dataclass(frozen=True, slots=True)
class Stacked:
    """A and B of all experts in two tensors: A [experts * rank, in], and B [out, rank * experts],
    whose columns are ordered by rank, then by expert. `swapped`: PEFT exchanged the two sides of
    the weight, so B^T multiplies the input and A^T makes the output."""

    experts: int
    swapped: bool


@dataclass(frozen=True, slots=True)
class Change:
    """What an adapter adds to one module: scale * B A. With a magnitude (DoRA), each output row of
    the sum is then scaled to that length."""

    part: SitePart
    rank: int
    scale: float
    a: StoredTensor  # [rank, columns]; for an embedding [rank, vocabulary]
    b: StoredTensor  # [rows, rank]; for an embedding [hidden, rank]
    magnitude: StoredTensor | None = None
    stacked: Stacked | None = None
    formed: Formed | None = None  # what A and B are made of, with `a` and `b`
    # PEFT subtracts scale * Q R from the base when it loads it, where Q R are the first columns of
    # its weight (OLoRA): so -Q and R are part of the change, like B and A.
    less_columns: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """Factors (IA3) of the result of a part, with its bias. `of_last_rows`: only for so many of its
    last rows."""

    part: SitePart
    stored: StoredTensor
    has_bias: bool
    of_last_rows: bool = False


@dataclass(frozen=True, slots=True)
class Own:
    """An adapter's own numbers in place of the base's: rows of a weight (by default all) or a bias;
    or a bias that is added, times `scale`."""

    part: SitePart
    kind: Literal["weight", "bias", "added_bias"]
    stored: StoredTensor
    tokens: tuple[int, ...] | None = None
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Copy:
    """An embedding or a head that PEFT stored beside an adapter. It is the base's own, which has it
    under one of these names (a head tied to the embedding has no weight of its own); if not, all
    these parts take it in place of the base's."""

    stored: StoredTensor
    names: tuple[str, ...]
    parts: tuple[SitePart, ...]
