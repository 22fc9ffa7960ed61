"""Who is admitted next: the plan's order within a priority, and nobody waits for ever.

A sequence that has waited longer than `max_wait` goes before all others, whatever the
priorities say, the longest waiting first.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator

from quire.scheduler.sequence import Sequence

Key = tuple[int, int, int, int]


def _key(sequence: Sequence) -> Key:
    request = sequence.request
    return (request.priority, sequence.order, request.number, sequence.sample)


class Waiting:
    """The sequences that want a row."""

    def __init__(self) -> None:
        self._heap: list[tuple[Key, int, Sequence]] = []
        self._by_age: deque[Sequence] = deque()
        self._count = 0
        self._entries = 0  # tells entries of one sequence apart, so that none is compared

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Sequence]:
        return (s for s in {id(s): s for _, _, s in self._heap}.values() if s.waiting)

    def add(self, sequence: Sequence, *, again: bool = False) -> None:
        """`again`: it was here before (preempted), so it is among the oldest."""
        sequence.waiting = True
        self._count += 1
        self._entries += 1
        heapq.heappush(self._heap, (_key(sequence), self._entries, sequence))
        if again:
            self._by_age.appendleft(sequence)
        else:
            self._by_age.append(sequence)

    def add_again(self, sequence: Sequence) -> None:
        self.add(sequence, again=True)

    def remove(self, sequence: Sequence) -> None:
        """Take it out; its entries in both queues die when they come to the front."""
        sequence.waiting = False
        self._count -= 1
        while self._heap and not self._heap[0][2].waiting:
            heapq.heappop(self._heap)
        while self._by_age and not self._by_age[0].waiting:
            self._by_age.popleft()
        if len(self._by_age) > 2 * self._count + 64:
            self._by_age = deque(s for s in self._by_age if s.waiting)

    def next(self, now: float, max_wait: float) -> Sequence | None:
        """The one to admit next, left in the queue; None if nobody waits."""
        if not self._count:
            return None
        oldest = self._by_age[0]
        if now - oldest.timings.queued > max_wait:
            return oldest
        return self._heap[0][2]
