"""Whether rows are given what their grammars force, where slices are a pass of their own."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from quire.engine import Engine
from quire.request import Request
from quire.sampling_params import SamplingParams
from quire.scheduler.pacing import Jump, Pacing
from quire.scheduler.sequence import Sequence
from tests.fakes import FakeExecutor, FakeGuide
from tests.scheduler.runs import Setting, drain, make_request


class Forcing(FakeGuide):
    """Forces so many tokens after the fifth, and none after others."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count, self.asked = count, 0

    def forced(self) -> list[int]:
        self.asked += 1
        return list(range(self.count)) if len(self.accepted) == 5 else []


def engine_apart() -> Engine:
    setting = Setting(400, 4, 32, 400, max_repeat=1, depth=1, caching=False)
    return setting.engine(Pacing(apart=True))


def slices_of_forced(counts: list[int], plain: int = 0) -> list[int]:
    """The lengths of what rows with a grammar were given, beside so many rows without one."""
    engine = engine_apart()
    for i in range(len(counts) + plain):
        guide = Forcing(counts[i]) if i < len(counts) else None
        engine.add([Sequence(make_request(i, [1, 2], 20), order=i, guide=guide)])
    assert len(drain(engine)) == len(counts) + plain
    assert isinstance(engine.executor, FakeExecutor)
    return [len(s.token_ids) for p in engine.executor.plans for s in p.prefill if s.start > 2]


def test_they_are_where_forced_tokens_outweigh_a_pass() -> None:
    assert slices_of_forced([2]) and slices_of_forced([2] * 20) and slices_of_forced([12, 0])
    assert not slices_of_forced([1])
    assert not slices_of_forced([3] + [0] * 15)


def test_rows_without_grammars_count_for_what_a_pass_costs_them() -> None:
    assert slices_of_forced([4], plain=1)
    assert not slices_of_forced([4], plain=10)


def test_what_is_not_given_is_owed_and_nothing_is_asked_until_it_was_drawn() -> None:
    engine, guides = engine_apart(), [Forcing(3), *(Forcing(0) for _ in range(15))]
    for i, guide in enumerate(guides):
        engine.add([Sequence(make_request(i, [1, 2], 20), order=i, guide=guide)])
    seen = []
    while not engine.idle:
        engine.step()
        seen.append(list(guides[0].must_draw))
    assert [0, 1, 2] in seen
    assert guides[0].asked == 5, "after that the fake one draws what it likes, and must for ever"
    assert {guide.asked for guide in guides[1:]} == {19}, "nobody goes on after the last"


@pytest.mark.parametrize(
    "asked",
    [
        {"allowed_token_ids": [1]},
        {"_bad_words_token_ids": [[3]]},
        {"_suppressed_token_ids": ([3], [])},
        {"min_tokens": 2},
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_rows_that_may_forbid_a_forced_token_never_draw_it(asked: dict[str, Any]) -> None:
    params, free = SamplingParams(), SamplingParams()
    for name, value in asked.items():
        setattr(params, name, value)
    assert _jump(params) is Jump.ALWAYS
    assert _jump(free) is Jump.IF_WORTH


def _jump(params: SamplingParams) -> Jump:
    prompt, stops = np.array([1], np.int32), frozenset({7})
    sequence = Sequence(Request(0, prompt, params, 9, 0, stops), guide=FakeGuide())
    assert Pacing().jump(sequence) is Jump.ALWAYS, "slices are part of the pass"
    processed = dataclasses.replace(sequence.request, processors=(print,))
    assert Pacing(apart=True).jump(Sequence(processed, guide=FakeGuide())) is Jump.ALWAYS
    return Pacing(apart=True).jump(sequence)
