"""Plans and results in the form in which ranks in other processes exchange them.

A row's logits processors run in the engine's process, where the request is. So the first rank sends
the logits of such rows with its result. The plan that releases the rows brings all ranks the edited
logits, or why the processors failed. LoRA adapters are read in the engine's process as well, and
sent to ranks before the first plan that uses them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from quire.step import Floats, StepPlan, StepResult

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class RankPlan:
    """A plan, and for its released rows the edited logits [vocabulary] or why that failed."""

    plan: StepPlan
    processed: dict[int, Floats] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RankResult:
    """A result, and the logits [vocabulary] of rows with processors."""

    result: StepResult
    logits: dict[int, Floats] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AdapterPart:
    """What an adapter adds to one part of a product (backends/adapter_ops.py): A and B as bytes of
    numbers in the model's dtype."""

    site: str
    part: int
    first: int
    a: Bytes
    b: Bytes
    factor: Floats | None


@dataclass(frozen=True, slots=True)
class OwnPart:
    """What replaces the base model's numbers at a site: a weight as bytes, in the model's dtype or,
    for norms, in float32."""

    site: str
    rows: npt.NDArray[np.int64] | None
    weight: Bytes | None
    offset: Floats | None


@dataclass(frozen=True, slots=True)
class RankAdapter:
    """A whole adapter, with its number, and the numbers of adapters that are not used again."""

    number: int
    forgotten: tuple[int, ...]
    parts: tuple[AdapterPart, ...]
    own: tuple[OwnPart, ...] = ()
