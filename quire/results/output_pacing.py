"""When outputs of growing answers are made: after every step, unless that takes too long.

An output for each of 512 answers costs the engine's thread as much as several steps of a small
model, and the sender as much again. So at most a quarter of the time goes into them: until the next
time, and while the last outputs are still being sent, the tokens of several steps are gathered into
one output.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from quire.scheduler.reports import Grown, StepReport
from quire.scheduler.sequence import Sequence

FREE_SECONDS = 0.002  # of processor time: no more than this may be spent after every step
REST = 3  # times what the last outputs took, until the next ones
Made = TypeVar("Made")


class OutputPacing:
    """Growing answers whose newest tokens are in no output yet."""

    def __init__(
        self,
        *,
        paced: bool = True,
        is_behind: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """If not `paced`, outputs are made after every step, however long that takes. `is_behind`:
        the last outputs have not been sent yet."""
        self._paced, self._is_behind, self._clock = paced, is_behind, clock
        self._owed: dict[Sequence, Grown] = {}
        self._next = 0.0  # when outputs may be made again; 0: at any time

    def due(self, report: StepReport) -> list[Grown]:
        """The answers to make outputs of now, from this step and earlier ones, each in its newest
        form. Ended answers are left out: their last outputs hold everything."""
        self._owed.update((one.sequence, one) for one in report.grown)
        for sequence in report.ended:
            self._owed.pop(sequence, None)
        if not self._owed or (self._next and (self._clock() < self._next or self._is_behind())):
            return []
        due, self._owed = list(self._owed.values()), {}
        return due

    def timed(self, outputs: Iterator[Made]) -> Iterator[Made]:
        """Yield these outputs, and set from their processor time when the next ones may be made.
        Processor time, so that other programs on the machine do not matter."""
        before = time.thread_time()
        yield from outputs
        took = time.thread_time() - before
        is_long = self._paced and took > FREE_SECONDS
        self._next = self._clock() + REST * took if is_long else 0.0
