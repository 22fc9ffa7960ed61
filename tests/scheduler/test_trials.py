"""Rows that the host draws for try ahead: how far, and what that leaves of the plans of others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire.engine import Engine
from quire.request import Request
from quire.scheduler.pacing import Pacing
from quire.scheduler.sequence import Sequence
from quire.step import MOST_TRIED, StepPlan
from tests.fakes import FakeExecutor, FakeRow, expected_output
from tests.scheduler.runs import Setting, make_request, run_all

LENGTH = 96


class Trying(FakeExecutor):
    """What a row tries stands for `reach` steps, and all its plans are kept."""

    def __init__(self, like: FakeExecutor, reach: int) -> None:
        super().__init__(like.num_blocks, like.block_size, max_tokens=like.max_tokens)
        self.reach, self.all_plans = reach, list[StepPlan]()

    def submit(self, plan: StepPlan) -> object:  # type: ignore[override]
        self.all_plans.append(plan)
        return super().submit(plan)

    def _try(self, row: FakeRow, steps: int) -> list[int]:
        return self._decode(row, min(steps, self.reach))[0]

    def repeats(self) -> list[int]:
        return [plan.repeat for plan in self.all_plans if not plan.prefill]


def processed(number: int, length: int = LENGTH) -> Request:
    return replace(make_request(number, [number, 3], length), processors=(print,))


def run(requests: list[Request], reach: int, **more: int) -> Trying:
    options = {"max_num_seqs": 128, "max_num_batched_tokens": 1024, "block_size": 16, **more}
    fixed = {"num_blocks": 4000, "max_repeat": 32, "depth": 2, "caching": True}
    plain = Setting(**{**fixed, **options}).engine()  # type: ignore[arg-type]
    executor = Trying(plain.executor, reach)  # type: ignore[arg-type]
    engine = Engine(plain.scheduler, executor, depth=2)  # type: ignore[arg-type]
    done = run_all(engine, requests)
    for request in requests:
        assert done[request.number, 0].output_ids.tolist() == expected_output(request, 0)
    return executor


def others(count: int) -> list[Request]:
    return [make_request(i, [i, i], LENGTH) for i in range(1, count)]


def test_one_that_changes_few_tokens_keeps_pace_with_the_others() -> None:
    plain = run([make_request(0, [0, 3], LENGTH), *others(100)], 32).repeats()
    assert run([processed(0), *others(100)], 32).repeats() == plain
    assert max(plain) == 32 and len(plain) < 6


@pytest.mark.parametrize("reach", [1, 3])
def test_one_that_changes_many_leaves_the_others_their_steps(reach: int) -> None:
    executor = run([processed(0), *others(100)], reach)
    beside = [p.repeat for p in executor.all_plans if len(p.decode) > 2]
    assert max(beside) == 32 and len(beside) < 6
    alone = [p.repeat for p in executor.all_plans if len(p.decode) == 1 and len(p.tried)]
    # As many as are likely to stand, and now and then more.
    assert max(alone[4:]) <= 4 * reach and sum(alone) < 2 * LENGTH
    assert len(alone) < 1.7 * LENGTH / reach


def test_while_others_wait_for_a_row_two_plans_are_on_their_way() -> None:
    executor = run([processed(0), *others(300)], 32, max_num_seqs=100)
    absent = [p for p in executor.all_plans if len(p.decode) > 90 and not len(p.tried)]
    assert absent, "a plan is made before the last one's tokens are there"
    assert max(executor.repeats()) == 32


def test_many_rows_keep_few_lines_of_logits() -> None:
    executor = run([*(processed(i) for i in range(100))], 32)
    assert max(int(p.num_tried.sum()) for p in executor.all_plans) <= MOST_TRIED
    assert max(executor.repeats()) == MOST_TRIED // 100


def test_who_may_try() -> None:
    one = Sequence(processed(0))
    assert Pacing().of(one) and Pacing().may_try(one)
    assert not Pacing(goes_back=False).may_try(one), "a state cannot go back"
    assert not Pacing(every_row=True).may_try(one), "processors of the batch see whole steps"
    assert not Pacing().may_try(Sequence(make_request(0, [1], 4)))
    guided = Sequence(processed(0), guide=object())  # type: ignore[arg-type]
    assert Pacing().of(guided) and not Pacing().may_try(guided)
