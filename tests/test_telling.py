"""How often readers are told of answers that grow."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from quire.outputs import RequestOutput
from quire.results.telling import FREE_SECONDS, Telling
from quire.scheduler.reports import Grown, StepReport
from quire.scheduler.sequence import Sequence
from tests.scheduler.runs import make_request


def grown(number: int, length: int = 1) -> Grown:
    return Grown(Sequence(make_request(number, [1], 9)), np.zeros(length, np.int32))


def busy(seconds: float) -> Iterator[tuple[int, RequestOutput]]:
    """Outputs that take so long of the processor."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass
    yield from ()


def test_what_takes_little_is_told_after_every_step() -> None:
    telling = Telling(clock=lambda: 1.0)
    for i in range(5):
        assert telling.due(StepReport(grown=[one := grown(i)])) == [one]
        assert not list(telling.timed(busy(FREE_SECONDS / 10)))


def test_what_takes_long_is_told_a_quarter_of_the_time() -> None:
    now = 10.0
    telling, first, others = Telling(clock=lambda: now), grown(0), [grown(1), grown(2)]
    assert telling.due(StepReport(grown=[first])) == [first]
    assert not list(telling.timed(busy(3 * FREE_SECONDS)))
    assert telling.due(StepReport(grown=[first, *others])) == []
    now += 8.9 * FREE_SECONDS
    assert telling.due(StepReport()) == []
    now += FREE_SECONDS
    again = Grown(first.sequence, np.zeros(7, np.int32))
    due = telling.due(StepReport(ended=[others[0].sequence], grown=[again]))
    assert due == [again, others[1]], "the newest of each, without those that ended"
    assert telling.due(StepReport()) == []


def test_nothing_is_told_before_the_last_went_out() -> None:
    is_behind, now, first = True, 1.0, grown(0)
    telling = Telling(is_behind=lambda: is_behind, clock=lambda: now)
    assert telling.due(StepReport(grown=[first])) == [first], "little of it is no matter"
    assert not list(telling.timed(busy(2 * FREE_SECONDS)))
    now += 1.0
    assert telling.due(StepReport(grown=[first])) == []
    is_behind, again = False, Grown(first.sequence, np.zeros(2, np.int32))
    assert telling.due(StepReport(grown=[again])) == [again], "the tokens of both steps"


def test_every_step_is_told_to_a_loop_that_takes_its_time() -> None:
    telling = Telling(paced=False, clock=lambda: 1.0)
    for i in range(3):
        assert telling.due(StepReport(grown=[one := grown(i)])) == [one]
        assert not list(telling.timed(busy(2 * FREE_SECONDS)))
