"""Which LoRA adapters run: at most `most` at once, and none waits for ever.

A sequence whose adapter has no place is parked, so that sequences behind it can begin. A place that
becomes free goes to the adapter of the first parked sequence, for all sequences of that adapter.
When a parked sequence has waited longer than `max_wait`, an adapter that had its place for as long
begins no more sequences, and loses the place when those that it began have ended.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from quire.errors import QuireError
from quire.scheduler.rows import Rows
from quire.scheduler.sequence import Sequence
from quire.scheduler.waiting import Waiting

# Loads the weights of the adapter with this number into memory; returns why it could not, or None.
Hold = Callable[[int], QuireError | None]
Fail = Callable[[Sequence, QuireError], None]


class AdapterPlaces:
    """The adapters that have a place among those that run."""

    def __init__(
        self, rows: Rows, waiting: Waiting, most: int, hold: Hold | None, fail: Fail
    ) -> None:
        """At most `most` places; `fail` ends a sequence whose adapter `hold` cannot load."""
        self._rows, self._waiting, self._most = rows, waiting, most
        self._hold, self._fail = hold, fail
        self._since: dict[int, float] = {}  # when each got its place
        self._held: set[int] = set()  # whose weights are in memory, or on the device
        self._now = self._max_wait = 0.0

    def begin(self, now: float, max_wait: float) -> None:
        """Called before sequences are admitted: give free places to parked sequences."""
        if self._hold is None:
            return
        self._now, self._max_wait = now, max_wait
        running = self._rows.adapter[self._rows.running]
        active = set(np.unique(running[running > 0]).tolist())
        self._held &= active
        self._since = {
            number: since
            for number, since in self._since.items()
            if number in active or self._waiting.num_unparked(number)
        }
        while len(self._since) < self._most:
            number = self._waiting.unpark_first(now, max_wait)
            if number is None:
                return
            self._since[number] = now

    def next(self, now: float, max_wait: float, *, background: bool) -> Sequence | None:
        """The sequence to admit next, left in the queue, its adapter in memory; see Waiting."""
        while True:
            sequence = self._waiting.next(now, max_wait, background=background)
            if sequence is None or not sequence.request.adapter_number:
                return sequence
            if not self._takes(sequence):
                self._waiting.park(sequence)
            elif (error := self._have(sequence.request.adapter_number)) is None:
                return sequence
            else:
                self._waiting.remove(sequence)
                self._fail(sequence, error)

    def _takes(self, sequence: Sequence) -> bool:
        """Whether the sequence's adapter has a place, or gets one."""
        number = sequence.request.adapter_number
        if number not in self._since:
            if len(self._since) >= self._most:
                return False
            self._since[number] = self._now
        return not self._gives_way(number, background=sequence.request.background)

    def _gives_way(self, number: int, *, background: bool) -> bool:
        """Whether this adapter must leave its place to another before it begins more sequences."""
        oldest = self._waiting.oldest_parked
        if oldest is None or number not in self._held:
            return False
        if background and not oldest.request.background:
            return True
        is_overdue = self._now - oldest.timings.queued > self._max_wait
        return is_overdue and self._now - self._since[number] > self._max_wait

    def _have(self, number: int) -> QuireError | None:
        """Load an adapter unless it is in memory or on the device; returns why that failed."""
        if number in self._held:
            return None
        if self._hold is None:
            raise LookupError(f"adapter {number}: this scheduler was made without adapters")
        error = self._hold(number)
        if error is None:
            self._held.add(number)
        return error
