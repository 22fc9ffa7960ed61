"""Which sequence is admitted next: the plan's order within a priority, and none waits for ever.

Tenants have equal turns within a priority, however many sequences each of them has here. A sequence
that has waited longer than `max_wait` goes before all others of its tenant and lane, whatever the
priorities say, the longest waiting first. The background comes after the foreground, but has every
tenth turn. Sequences whose LoRA adapter has no place are parked outside the lanes (adapters.py).
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from itertools import chain

from quire.scheduler.sequence import Sequence

Key = tuple[int, int, int, int]
TURNS = 10  # the background has one of so many turns


def _key(sequence: Sequence) -> Key:
    request = sequence.request
    return (request.priority, sequence.order, request.number, sequence.sample)


def _in_lane(sequence: Sequence) -> bool:
    """Whether a sequence waits here; a parked one waits elsewhere, but may have entries left."""
    return sequence.waiting and not sequence.parked


class _Queue:
    """The waiting sequences of one tenant."""

    def __init__(self) -> None:
        self.turn = 0  # the number of the turn when it is next
        self._heap: list[tuple[Key, int, Sequence]] = []
        self._by_age: deque[Sequence] = deque()
        self._count = 0
        self._entries = 0  # counts entries, so that the heap never compares two sequences

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Sequence]:
        return (s for s in {id(s): s for _, _, s in self._heap}.values() if _in_lane(s))

    @property
    def key(self) -> Key:
        """The key of the first sequence, by priority and the plan's order."""
        return self._heap[0][0]

    def add(self, sequence: Sequence, *, again: bool) -> None:
        sequence.waiting = True
        self._count += 1
        self._entries += 1
        heapq.heappush(self._heap, (_key(sequence), self._entries, sequence))
        if again:
            self._by_age.appendleft(sequence)
        else:
            self._by_age.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out; its entries are removed when they come to the front."""
        sequence.waiting = False
        self._count -= 1
        while self._heap and not _in_lane(self._heap[0][2]):
            heapq.heappop(self._heap)
        while self._by_age and not _in_lane(self._by_age[0]):
            self._by_age.popleft()
        if len(self._by_age) > 2 * self._count + 64:
            self._by_age = deque(s for s in self._by_age if _in_lane(s))

    def is_overdue(self, now: float, max_wait: float) -> bool:
        return now - self._by_age[0].timings.queued > max_wait

    def next(self, now: float, max_wait: float) -> Sequence:
        """The sequence to admit next, left in the queue."""
        return self._by_age[0] if self.is_overdue(now, max_wait) else self._heap[0][2]


class _Lane:
    """The waiting sequences of one lane, by tenant."""

    def __init__(self) -> None:
        self._queues: defaultdict[str, _Queue] = defaultdict(_Queue)
        self._turn = 0  # the number of the last turn
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def has_tenants(self) -> bool:
        """Whether more than one ever waited here."""
        return len(self._queues) > 1

    def __iter__(self) -> Iterator[Sequence]:
        return chain.from_iterable(self._queues.values())

    def add(self, sequence: Sequence, *, again: bool) -> None:
        self._queues[sequence.request.tenant].add(sequence, again=again)
        self._count += 1

    def remove(self, sequence: Sequence) -> None:
        self._queues[sequence.request.tenant].remove(sequence)
        self._count -= 1

    def count_turn(self, sequence: Sequence) -> None:
        """The sequence's tenant had a turn; its next one comes after the other tenants'."""
        queue = self._queues[sequence.request.tenant]
        self._turn = self._due(queue)
        queue.turn = self._turn + 1

    def put_back(self, sequence: Sequence) -> None:
        """The sequence's tenant gives a row up: its next turn comes after all others'."""
        self._queues[sequence.request.tenant].turn = self._turn + 2

    @property
    def firsts(self) -> list[Sequence]:
        """The first of each tenant by priority and order."""
        return [queue.next(0.0, math.inf) for queue in self._queues.values() if queue]

    def _due(self, queue: _Queue) -> int:
        """The turn that a queue is due; turns that passed while it was empty are lost."""
        return max(queue.turn, self._turn)

    def next(self, now: float, max_wait: float) -> Sequence | None:
        """The sequence to admit next, left in the queue; None if none waits."""
        waiting = [queue for queue in self._queues.values() if queue]
        if len(waiting) > 1:
            first = min(queue.key[0] for queue in waiting)
            due = [q for q in waiting if q.key[0] == first or q.is_overdue(now, max_wait)]
            waiting = [min(due, key=lambda queue: (self._due(queue), queue.key))]
        return waiting[0].next(now, max_wait) if waiting else None


class Waiting:
    def __init__(self) -> None:
        self._foreground, self._background = _Lane(), _Lane()
        self._turns = 0  # of the foreground, while the background waited, since its last one
        self._parked: dict[int, deque[Sequence]] = {}  # by adapter
        self._num_parked = 0
        self._num_unparked: Counter[int] = Counter()  # by adapter, in the lanes
        self.more: Callable[[], None] | None = None  # queues more, which come after all that wait

    def __len__(self) -> int:
        return len(self._foreground) + len(self._background) + self._num_parked

    def __iter__(self) -> Iterator[Sequence]:
        yield from self._foreground
        yield from self._background
        yield from (s for some in self._parked.values() for s in some if s.parked)

    @property
    def num_foreground(self) -> int:
        return len(self._foreground)

    @property
    def num_background(self) -> int:
        return len(self._background)

    @property
    def has_tenants(self) -> bool:
        """Whether those of more than one ever waited in the foreground."""
        return self._foreground.has_tenants

    def _lane(self, sequence: Sequence) -> _Lane:
        return self._background if sequence.request.background else self._foreground

    def add(self, sequence: Sequence, *, again: bool = False) -> None:
        """`again`: it waited here before (it was preempted), so it is among the oldest."""
        self._lane(sequence).add(sequence, again=again)
        if number := sequence.request.adapter_number:
            self._num_unparked[number] += 1

    def admit(self, sequence: Sequence) -> None:
        """Take a sequence out for a row: this is a turn of its lane and of its tenant."""
        self._take_out(sequence)
        self._lane(sequence).count_turn(sequence)
        is_turn = sequence.request.background or not self._background
        self._turns = 0 if is_turn else self._turns + 1

    def remove(self, sequence: Sequence) -> None:
        if sequence.parked:  # its entry is dropped when its adapter is next
            sequence.parked = sequence.waiting = False
            self._num_parked -= 1
        else:
            self._take_out(sequence)

    def _take_out(self, sequence: Sequence) -> None:
        self._lane(sequence).remove(sequence)
        if number := sequence.request.adapter_number:
            self._num_unparked[number] -= 1
            if not self._num_unparked[number]:
                del self._num_unparked[number]

    def num_unparked(self, adapter: int) -> int:
        """How many wait in the lanes for this adapter."""
        return self._num_unparked.get(adapter, 0)

    def park(self, sequence: Sequence) -> None:
        """Let others go before it until its adapter has a place."""
        self._take_out(sequence)
        sequence.waiting = sequence.parked = True
        self._num_parked += 1
        self._parked.setdefault(sequence.request.adapter_number, deque()).append(sequence)

    def unpark_first(self, now: float, max_wait: float) -> int | None:
        """Put the sequences of the next adapter back into their lanes, foreground first, then the
        longest overdue; returns the adapter's number, or None if nothing is parked."""
        if not self._num_parked:
            self._parked.clear()
            return None
        firsts = self._first_parked()

        def turn(number: int) -> tuple[bool, float, Key]:
            first = firsts[number]
            queued = first.timings.queued
            overdue = queued if now - queued > max_wait else math.inf
            return first.request.background, overdue, _key(first)

        chosen = min(firsts, key=turn)
        for sequence in reversed(self._parked.pop(chosen)):
            if sequence.parked:
                sequence.parked = False
                self._num_parked -= 1
                self.add(sequence, again=True)
        return chosen

    def _first_parked(self) -> dict[int, Sequence]:
        """For each adapter the first sequence that is parked for it."""
        for number, some in list(self._parked.items()):
            while some and not some[0].parked:
                some.popleft()
            if not some:
                del self._parked[number]
        return {number: some[0] for number, some in self._parked.items()}

    @property
    def oldest_parked(self) -> Sequence | None:
        """The parked sequence that waits longest, of the foreground if any of it is parked."""
        if not self._num_parked:
            return None
        firsts = self._first_parked().values()
        return min(firsts, key=lambda s: (s.request.background, s.timings.queued))

    def next(self, now: float, max_wait: float, *, background: bool = True) -> Sequence | None:
        """The sequence to admit next, left in the queue; None if none waits. With `background` it
        may be one of the background."""
        if self.more is not None and len(self) < 2:  # one stays behind the next
            self.more()
        is_turn = self._turns >= TURNS - 1 and bool(self._background)
        lane = self._foreground
        if background and (is_turn or not self._foreground):
            lane = self._background
        return lane.next(now, max_wait)

    def put_back(self, sequence: Sequence) -> None:
        """A running sequence of the foreground gives its row to another tenant."""
        self._foreground.put_back(sequence)

    @property
    def firsts_in_foreground(self) -> list[Sequence]:
        """The first of each tenant by priority and order."""
        return self._foreground.firsts

    @property
    def first_in_foreground(self) -> Sequence | None:
        """The first by priority and order; None if none waits there."""
        return self._foreground.next(0.0, math.inf)
