"""When readers are told of answers that grow: after every step, unless telling takes too long.

An output for each of 512 answers costs the engine's thread as much as several steps of a small
model, and the sender as much again. So at most a quarter of the time goes into telling: until the
next time, and while the last outputs are still on their way, the tokens of several steps are
gathered into one output.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from quire.scheduler.reports import Grown, StepReport
from quire.scheduler.sequence import Sequence

FREE_SECONDS = 0.002  # of the processor: this much is no matter after every step
REST = 3  # times what telling took, until the next time
Made = TypeVar("Made")


class Telling:
    """What has grown and was not yet told."""

    def __init__(
        self,
        *,
        paced: bool = True,
        is_behind: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """One that is not `paced` is told of every step, whatever that takes. `is_behind`: what
        was told last has not gone out yet."""
        self._paced, self._is_behind, self._clock = paced, is_behind, clock
        self._owed: dict[Sequence, Grown] = {}
        self._next = 0.0  # when it may be told again; 0: at any time

    def due(self, report: StepReport) -> list[Grown]:
        """What is to be told now, of this step and of earlier ones: the newest of each answer. What
        ended is not: its last output tells all of it."""
        self._owed.update((one.sequence, one) for one in report.grown)
        for sequence in report.ended:
            self._owed.pop(sequence, None)
        if not self._owed or (self._next and (self._clock() < self._next or self._is_behind())):
            return []
        due, self._owed = list(self._owed.values()), {}
        return due

    def timed(self, outputs: Iterator[Made]) -> Iterator[Made]:
        """These outputs; how long they took to make says when there may be others. Of the
        processor: others on the machine are no reason to tell less."""
        before = time.thread_time()
        yield from outputs
        took = time.thread_time() - before
        is_long = self._paced and took > FREE_SECONDS
        self._next = self._clock() + REST * took if is_long else 0.0
