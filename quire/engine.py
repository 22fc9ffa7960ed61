"""Engine: the loop between scheduler and executor. Sequences go in, reports about them come out.

Overlap is a number: `depth` plans may be in flight. With 1 the engine waits for each result before
it plans again; with 2 it plans the next step while the device computes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass

from quire.errors import EngineError
from quire.executor.executor import Executor, PendingStep
from quire.scheduler.reports import StepReport
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.sequence import Sequence
from quire.step import StepPlan

# The longest wait in one step for rows that are with their logits processors: callers check for
# Ctrl-C between steps.
HELD_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class _Submitted:
    plan: StepPlan
    pending: PendingStep
    at: float


class Engine:
    """Drives one executor with one scheduler."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        *,
        depth: int = 1,
        observe: Callable[[StepPlan, float], None] = lambda plan, seconds: None,
    ) -> None:
        """`observe` gets each plan and the seconds that the device took for it alone."""
        self.scheduler, self.executor, self.depth = scheduler, executor, depth
        self.num_steps = 0
        scheduler.use(executor.handles)
        self._observe, self._last_result = observe, 0.0
        self._in_flight: deque[_Submitted] = deque()

    @property
    def idle(self) -> bool:
        return not self._in_flight and not self.scheduler.num_unfinished

    @property
    def wants_more(self) -> bool:
        """Whether fewer sequences wait than could run at once."""
        return len(self.scheduler.waiting) < self.scheduler.rows.capacity

    def add(self, samples: Many[Sequence]) -> None:
        self.executor.handles.add_request(samples[0].request)
        self.scheduler.add(samples)

    @property
    def is_hurried(self) -> bool:
        """Whether an interactive request waits or came lately, so that steps are kept short."""
        return self.scheduler.lanes.is_hurried

    @property
    def takes_plan(self) -> bool:
        """Whether another plan may be submitted now."""
        # A request that comes now waits for all plans in flight, so there is only one.
        alone = self.is_hurried or self.scheduler.trials.are_due
        return len(self._in_flight) < (1 if alone else self.depth)

    def step(self) -> StepReport:
        """Submit a plan, or wait for the oldest result; says what happened."""
        if self.takes_plan:
            plan = self.scheduler.schedule()
            if plan is not None:
                before = time.perf_counter()
                self._in_flight.append(_Submitted(plan, self.executor.submit(plan), before))
                self.num_steps += plan.repeat
                return StepReport()
        if self._in_flight:
            return self._commit_oldest()
        report = self.scheduler.take_report()
        if not report.ended and self.scheduler.num_held:
            self.scheduler.held.wait(HELD_SECONDS)
            return report
        if not report.ended:
            raise EngineError(
                f"no progress: {self.scheduler.num_running} sequences run and "
                f"{len(self.scheduler.waiting)} wait, but no step can be made. This is a bug."
            )
        return report

    def _commit_oldest(self) -> StepReport:
        """Wait for the oldest plan and commit it."""
        oldest = self._in_flight.popleft()
        result = oldest.pending.result()
        now = time.perf_counter()
        seconds = now - max(oldest.at, self._last_result)
        self._observe(oldest.plan, seconds)
        self._last_result = now
        return self.scheduler.commit(result, seconds)

    def abort(self, samples: Many[Sequence]) -> None:
        """End these sequences now; results for them that are still to come are dropped."""
        self.scheduler.abort(samples)

    def drain(self) -> None:
        """Wait for all plans in flight, so that the device is idle."""
        while self._in_flight:
            self._commit_oldest()

    def reset(self, scheduler: Scheduler | None = None) -> None:
        """Drop every sequence, every row and the prefix cache, whatever state they are in, and go
        on with another scheduler: the given one, or an empty one with the same settings."""
        self._in_flight.clear()
        self.executor.reset()
        self.executor.handles.clear()
        self.scheduler = self.scheduler.fresh() if scheduler is None else scheduler
        self.scheduler.use(self.executor.handles)
