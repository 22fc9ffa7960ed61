"""Tenants have equal turns among those that wait, whatever each of them asks for."""

from __future__ import annotations

import math

import pytest

from quire.scheduler.waiting import Waiting
from tests.scheduler.runs import make_request, samples_of


class Queue:
    """Sequences that wait, and whose are admitted."""

    def __init__(self) -> None:
        self.waiting, self._num_made = Waiting(), 0

    def add(self, tenants: str, queued: float = 0.0, **more: object) -> None:
        """One sequence for each letter."""
        for tenant in tenants:
            self._num_made += 1
            request = make_request(self._num_made, [1], 1, tenant=tenant, **more)
            [sequence] = samples_of(request, order=self._num_made)
            sequence.timings.queued = queued
            self.waiting.add(sequence)

    def admitted(self, count: int = 1000, *, now: float = 0.0, max_wait: float = math.inf) -> str:
        tenants = ""
        while len(tenants) < count and (one := self.waiting.next(now, max_wait)) is not None:
            self.waiting.admit(one)
            tenants += one.request.tenant
        return tenants


def test_who_comes_last_has_the_next_turn_and_not_one_behind_all_others() -> None:
    queue = Queue()
    queue.add("a" * 8)
    assert queue.admitted(2) == "aa"
    queue.add("bbc")
    assert queue.admitted() == "bcabaaaaa"


def test_turns_that_went_by_unused_are_not_had_later() -> None:
    queue = Queue()
    queue.add("ab" + "a" * 50)
    assert queue.admitted(40) == "ab" + "a" * 38
    queue.add("bbbb")
    assert queue.admitted(8) == "babababa"


def test_one_request_at_a_time_takes_no_more_than_every_second_turn() -> None:
    queue, came = Queue(), ""
    queue.add("a" * 20)
    for _ in range(20):
        if not came.endswith("b"):
            queue.add("b")
        came += queue.admitted(1)
    assert came.count("a") == 10


@pytest.mark.parametrize("background", [False, True])
def test_what_is_given_up_was_no_turn(background: bool) -> None:
    queue = Queue()
    queue.add("a" * 9 + "b" * 9, background=background)
    for sequence in [s for s in queue.waiting if s.request.tenant == "a"][:6]:
        queue.waiting.remove(sequence)
    assert queue.admitted(6) == "ababab"


def test_priorities_count_before_turns() -> None:
    queue = Queue()
    queue.add("aaa", priority=1)
    queue.add("bbb", priority=2)
    queue.add("bb", priority=1)
    assert queue.admitted() == "ababa" + "bbb"


def test_those_that_waited_too_long_still_take_turns_with_others() -> None:
    """A tenant with hours of work has nothing but such as waited too long."""
    queue = Queue()
    queue.add("aaaa", queued=10.0, priority=5)
    queue.add("bbb", queued=100.0)
    assert queue.admitted(now=101.0, max_wait=60.0) == "bababaa"


def test_without_tenants_the_order_is_the_plans() -> None:
    queue = Queue()
    for number in (3, 1, 2):
        queue.waiting.add(samples_of(make_request(number, [1], 1), order=number)[0])
    came = []
    while (one := queue.waiting.next(0.0, math.inf)) is not None:
        queue.waiting.admit(one)
        came.append(one.request.number)
    assert came == [1, 2, 3]
