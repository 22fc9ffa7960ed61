"""Plans and results as they go to ranks in other processes and come from them.

A row's logits processors run where the request is, in the engine's process: the first rank sends
the logits of such rows with its result, and with the plan that releases them all ranks are given
what the processors made of them, or why they failed. LoRA adapters are read there as well, and go
to ranks before the first plan that uses them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from quire.step import Floats, StepPlan, StepResult

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class RankPlan:
    """A plan, and for its released rows processed logits [vocabulary] or what went wrong."""

    plan: StepPlan
    processed: dict[int, Floats] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RankResult:
    """A result, and the logits [vocabulary] of rows whose processors are to see them."""

    result: StepResult
    logits: dict[int, Floats] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AdapterPart:
    """What an adapter adds to one part of a product (backends/adapter_ops.py): A and B as the bytes
    of their numbers, which are of the model's type."""

    site: str
    part: int
    first: int
    a: Bytes
    b: Bytes
    factor: Floats | None


@dataclass(frozen=True, slots=True)
class OwnPart:
    """What an adapter has at a site in place of the base's numbers: a weight as bytes, of the
    model's type, or of float32 where it is a norm's."""

    site: str
    rows: npt.NDArray[np.int64] | None
    weight: Bytes | None
    offset: Floats | None


@dataclass(frozen=True, slots=True)
class RankAdapter:
    """An adapter of this number, whole, and the numbers of those that are not used again."""

    number: int
    forgotten: tuple[int, ...]
    parts: tuple[AdapterPart, ...]
    own: tuple[OwnPart, ...] = ()
