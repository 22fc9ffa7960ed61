"""An executor that writes to the board what it is about to do, before it does it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING

from quire.replicas.board import Board, Phase

if TYPE_CHECKING:
    from quire.executor.executor import Executor, ExecutorFacts, PendingStep
    from quire.step import StepPlan
    from quire.steps.handles import Handles


class WatchedExecutor:
    """Wraps an executor; `held` returns the rows that the engine has."""

    def __init__(self, inner: Executor, board: Board, held: Callable[[], list[int]]) -> None:
        self._inner, self._board, self._held = inner, board, held
        self._seconds: deque[float] = deque(maxlen=64)
        self._last, self._median = time.monotonic(), 0.0

    @property
    def handles(self) -> Handles:
        return self._inner.handles

    def start(self) -> ExecutorFacts:
        return self._inner.start()

    def submit(self, plan: StepPlan) -> PendingStep:
        now = time.monotonic()
        self._seconds.append(now - self._last)
        self._last = now
        if len(self._seconds) == 1 or not len(self._seconds) % 16:
            self._median = median(self._seconds)
        if plan.starts or len(plan.ends):
            self._board.show_rows(self._held())
        self._board.move(Phase.WORKING, self._median)
        return self._inner.submit(plan)

    def reset(self) -> None:
        self._inner.reset()

    def close(self) -> None:
        self._inner.close()
