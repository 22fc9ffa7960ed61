"""What became of sequences, kept until it is asked for: sequences that ended, and new tokens of
watched ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from quire.errors import QuireError
from quire.request import Ints
from quire.scheduler.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Grown:
    """A watched sequence that goes on, with all its tokens so far."""

    sequence: Sequence
    output_ids: Ints


@dataclass(frozen=True, slots=True)
class StepReport:
    """What happened in a step: sequences that ended, and watched sequences with new tokens."""

    ended: list[Sequence] = field(default_factory=list)
    grown: list[Grown] = field(default_factory=list)


class Reports:
    """Collects sequences that end, by themselves or by an error, and those that are watched."""

    def __init__(self) -> None:
        self._ended: list[Sequence] = []
        self._grown: list[Grown] = []
        self._service_times: deque[float] = deque(maxlen=101)

    @property
    def num_ended(self) -> int:
        """Ended sequences that were not taken yet."""
        return len(self._ended)

    def take(self) -> StepReport:
        """What happened since the last call."""
        report = StepReport(self._ended, self._grown)
        self._ended, self._grown = [], []
        return report

    def forget(self, is_gone: Callable[[Sequence], bool]) -> None:
        """Report nothing of these sequences."""
        self._ended = [s for s in self._ended if not is_gone(s)]
        self._grown = [g for g in self._grown if not is_gone(g.sequence)]

    def grew(self, sequence: Sequence, output_ids: Ints) -> None:
        self._grown.append(Grown(sequence, output_ids))

    def finish(self, sequence: Sequence, now: float) -> None:
        """Note a sequence that ended by itself; its finish reason is set."""
        sequence.timings.last_token = now
        self._service_times.append(now - sequence.timings.scheduled)
        self._ended.append(sequence)

    def fail(self, sequence: Sequence, error: QuireError) -> None:
        """End a sequence that is in no row, and the samples that were to fork off it."""
        for one in (sequence, *sequence.siblings):
            one.finish_reason, one.error = "error", error
            self._ended.append(one)
        sequence.siblings = []

    def long_wait(self, least: float) -> float:
        """Seconds of waiting after which a sequence goes before all others: `least`, or four
        times the median time that recent sequences took."""
        times = self._service_times
        return max(least, 4 * median(times)) if times else least
