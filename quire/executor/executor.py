"""What the engine asks of whatever computes: the protocol, and nothing about tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from quire.handles import Handles
from quire.step import StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class ExecutorFacts:
    """What starting an executor taught: how many KV blocks there are, and how it computes."""

    num_blocks: int
    device: str  # "cpu", "cuda:0"
    dtype: str
    notes: tuple[str, ...] = ()  # one line each, for the log and `quire doctor`


class PendingStep(Protocol):
    """A plan that was submitted; `result` waits for it. Results come in the order of plans."""

    def result(self) -> StepResult: ...


class Executor(Protocol):
    """Runs StepPlans in the order they are submitted."""

    @property
    def handles(self) -> Handles:
        """What plans and results name that is no plain data."""

    def start(self) -> ExecutorFacts: ...

    def submit(self, plan: StepPlan) -> PendingStep: ...

    def reset(self) -> None:
        """Forget every row and every pending result; the memory stays."""

    def close(self) -> None:
        """Free the device memory; called once, after every pending result was read or dropped."""
