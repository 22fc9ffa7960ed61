"""How often readers are told of answers that grow."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from quire.outputs import RequestOutput
from quire.results.output_pacing import FREE_SECONDS, OutputPacing
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
    pacing = OutputPacing(clock=lambda: 1.0)
    for i in range(5):
        assert pacing.due(StepReport(grown=[one := grown(i)])) == [one]
        assert not list(pacing.timed(busy(FREE_SECONDS / 10)))


def test_what_takes_long_is_told_a_quarter_of_the_time() -> None:
    now = 10.0
    pacing, first, others = OutputPacing(clock=lambda: now), grown(0), [grown(1), grown(2)]
    assert pacing.due(StepReport(grown=[first])) == [first]
    assert not list(pacing.timed(busy(3 * FREE_SECONDS)))
    assert pacing.due(StepReport(grown=[first, *others])) == []
    now += 8.9 * FREE_SECONDS
    assert pacing.due(StepReport()) == []
    now += FREE_SECONDS
    again = Grown(first.sequence, np.zeros(7, np.int32))
    due = pacing.due(StepReport(ended=[others[0].sequence], grown=[again]))
    assert due == [again, others[1]], "the newest of each, without those that ended"
    assert pacing.due(StepReport()) == []


def test_nothing_is_told_before_the_last_went_out() -> None:
    is_behind, now, first = True, 1.0, grown(0)
    pacing = OutputPacing(is_behind=lambda: is_behind, clock=lambda: now)
    assert pacing.due(StepReport(grown=[first])) == [first], "little of it is no matter"
    assert not list(pacing.timed(busy(2 * FREE_SECONDS)))
    now += 1.0
    assert pacing.due(StepReport(grown=[first])) == []
    is_behind, again = False, Grown(first.sequence, np.zeros(2, np.int32))
    assert pacing.due(StepReport(grown=[again])) == [again], "the tokens of both steps"


def test_every_step_is_told_to_a_loop_that_takes_its_time() -> None:
    pacing = OutputPacing(paced=False, clock=lambda: 1.0)
    for i in range(3):
        assert pacing.due(StepReport(grown=[one := grown(i)])) == [one]
        assert not list(pacing.timed(busy(2 * FREE_SECONDS)))
