"""Engine: sequences in, what became of them out: the loop between scheduler and executor.

Overlap is a number: `depth` plans may be on their way. 1 waits for each result before it plans
again; 2 plans the next step while the device computes.
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

# How long a step waits at most for rows that are with their logits processors: Ctrl-C is looked
# for between steps.
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
        """Fewer wait than could run at once."""
        return len(self.scheduler.waiting) < self.scheduler.rows.capacity

    def add(self, samples: Many[Sequence]) -> None:
        self.executor.handles.add_request(samples[0].request)
        self.scheduler.add(samples)

    @property
    def is_hurried(self) -> bool:
        """Somebody waits for steps to be short."""
        return self.scheduler.lanes.is_hurried

    @property
    def takes_plan(self) -> bool:
        """Fewer plans are on their way than may be."""
        # A plan that waits behind another is one that a newcomer waits for.
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
            return self._land()
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

    def _land(self) -> StepReport:
        """Wait for the oldest plan and commit it."""
        oldest = self._in_flight.popleft()
        result = oldest.pending.result()
        now = time.perf_counter()
        seconds = now - max(oldest.at, self._last_result)
        self._observe(oldest.plan, seconds)
        self._last_result = now
        return self.scheduler.commit(result, seconds)

    def abort(self, samples: Many[Sequence]) -> None:
        """End these sequences now; results on their way for them are dropped."""
        self.scheduler.abort(samples)

    def drain(self) -> None:
        """Wait for what is on its way, so that the device is idle."""
        while self._in_flight:
            self._land()

    def reset(self, scheduler: Scheduler | None = None) -> None:
        """Forget every sequence, every row and the prefix cache, whatever state they are in, and go
        on with another scheduler: the given one, or a fresh one of the same kind."""
        self._in_flight.clear()
        self.executor.reset()
        self.executor.handles.clear()
        self.scheduler = self.scheduler.fresh() if scheduler is None else scheduler
        self.scheduler.use(self.executor.handles)
