"""What an adapter does to the parts of a model, as its plan has it. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quire.adapters.forms import Formed
from quire.adapters.sites import SitePart
from quire.weights.formats import StoredTensor


@dataclass(frozen=True, slots=True)
class Stacked:
    """A and B of all experts in two tensors: A [experts * rank, in], and B [out, rank * experts],
    whose columns are by rank, then by expert. `swapped`: what multiplies the input is B^T, and A^T
    makes the output, since PEFT took the two sides of the weight for each other."""

    experts: int
    swapped: bool


@dataclass(frozen=True, slots=True)
class Change:
    """What an adapter adds to one module: scale * B A, and with a magnitude each output row of the
    sum gets that length (DoRA)."""

    part: SitePart
    rank: int
    scale: float
    a: StoredTensor  # [rank, columns]; of an embedding [rank, vocabulary]
    b: StoredTensor  # [rows, rank]; of an embedding [hidden, rank]
    magnitude: StoredTensor | None = None
    stacked: Stacked | None = None
    formed: Formed | None = None  # what A and B are to be made of, of which `a` and `b` are two
    # PEFT takes scale * Q R from the base when it loads it, where Q R are the first columns of its
    # weight (OLoRA): -Q and R are as much of the change as B and A.
    less_columns: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """Numbers that what comes out of a part is multiplied with, its bias too (IA3). `of_last_rows`:
    they are for so many of its last rows alone."""

    part: SitePart
    stored: StoredTensor
    has_bias: bool
    of_last_rows: bool = False


@dataclass(frozen=True, slots=True)
class Own:
    """Numbers that an adapter has in place of the base's: rows of a weight, by default all of
    them, or a bias; or a bias that is added, times `scale`, to what is there."""

    part: SitePart
    kind: Literal["weight", "bias", "added_bias"]
    stored: StoredTensor
    tokens: tuple[int, ...] | None = None
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Copy:
    """An embedding or a head that PEFT stored beside an adapter: the base's own, which has it under
    one of these names (a head that is the embedding has no weight of its own), or else what is to
    be taken in place of it by all these parts."""

    stored: StoredTensor
    names: tuple[str, ...]
    parts: tuple[SitePart, ...]
