"""Plans and results as they go to ranks in other processes and come from them.

A row's logits processors run where the request is, in the engine's process: the first rank sends
the logits of such rows with its result, and with the plan that releases them all ranks are given
what the processors made of them, or why they failed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quire.step import Floats, StepPlan, StepResult


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
