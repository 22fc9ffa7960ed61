"""An executor that computes nothing: the engines are in other processes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn

from quire.errors import NotSupported
from quire.executor.executor import ExecutorFacts, PendingStep
from quire.step import StepPlan
from quire.steps.handles import Handles

if TYPE_CHECKING:
    from torch import Tensor


class NoExecutor:
    """Takes the place of a session's executor."""

    def __init__(self, num_blocks: int) -> None:
        self.handles = Handles()
        self.facts = ExecutorFacts(num_blocks, "replicas", "none")

    def start(self) -> ExecutorFacts:
        return self.facts

    def submit(self, plan: StepPlan) -> PendingStep:
        self._refuse()

    def reset(self) -> None:
        """Does nothing: there is no state."""

    def close(self) -> None:
        """Does nothing: there is no memory to free."""

    def sleep(self, *, keep_weights: bool) -> None:
        self._refuse()

    def wake_up(self, part: str) -> None:
        self._refuse()

    def load_weights(self, named: Iterable[tuple[str, Tensor]]) -> set[str]:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise NotSupported("an LLM with data_parallel_size has its engines in other processes")
