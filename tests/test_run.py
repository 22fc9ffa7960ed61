"""The drive loop submits a first plan before all requests of a window are queued."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from quire.plan.lengths import OutputLengths
from quire.request import Request
from quire.results.finished import Results
from quire.run import QUEUED_FIRST, Run
from quire.step import StepPlan
from quire.steps.codec import encode
from tests.fakes import Done, FakeExecutor
from tests.plan.making import planner
from tests.scheduler.runs import Setting, make_request


class Watching(FakeExecutor):
    """Notes each plan, and how many requests were known to the engine when it came."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting.num_blocks, setting.block_size)
        self.seen: list[bytes] = []
        self.num_queued: list[int] = []
        self.num_added = 0

    def submit(self, plan: StepPlan) -> Done:
        self.seen.append(encode(plan))
        self.num_queued.append(self.num_added)
        return super().submit(plan)


SETTING = Setting(
    num_blocks=4000,
    block_size=4,
    max_num_seqs=600,
    max_num_batched_tokens=2000,
    max_repeat=4,
    depth=2,
    caching=True,
)


def some_requests(rng: random.Random, count: int) -> list[Request]:
    preambles = [[rng.randrange(5) for _ in range(24)] for _ in range(3)]
    return [
        make_request(
            number,
            [*rng.choice(preambles), *(rng.randrange(900) for _ in range(rng.randint(1, 4)))],
            rng.randint(1, 3),
            n=rng.choice([1, 1, 2]),
            priority=rng.choice([0, 0, 1]),
        )
        for number in range(count)
    ]


def run(
    requests: list[Request], *, parted: bool, setting: Setting = SETTING
) -> tuple[Watching, dict[int, list[list[int]]]]:
    """The executor afterwards, and what came out."""
    device = Watching(setting)
    engine = setting.engine(device=device, clock=lambda: 0.0)
    add = engine.add

    def count_and_add(samples: object) -> None:
        device.num_added += 1
        add(samples)  # type: ignore[arg-type]

    engine.add = count_and_add  # type: ignore[method-assign]
    plans = planner(num_blocks=setting.num_blocks, block_size=setting.block_size)
    drive = Run(engine, plans, OutputLengths(), Results(None))
    outputs = {
        index: [list(answer.token_ids) for answer in output.outputs]
        for index, output in drive.outputs([requests], parted=parted)
    }
    return device, outputs


@pytest.mark.parametrize("budget", [100, 2000, 10_000])
def test_parts_of_a_window_give_the_plans_of_the_whole(budget: int) -> None:
    """The first plan begins fewer requests than are queued first, more of them, or all it can."""
    setting = replace(SETTING, max_num_batched_tokens=budget)
    requests = some_requests(random.Random(budget), 700)
    whole, outputs = run(requests, parted=False, setting=setting)
    parts, same = run(requests, parted=True, setting=setting)
    assert parts.seen == whole.seen and same == outputs
    assert len(outputs) == len(requests) == whole.num_queued[0] == parts.num_queued[1]
    assert QUEUED_FIRST <= parts.num_queued[0] < len(requests)


def test_a_request_that_repeats_one_queued_later_gets_its_answer() -> None:
    requests = some_requests(random.Random(1), 400)
    # Greedy and equal: the second does not run.
    twins = [make_request(number, [9, 9, 9], 1, temperature=0.0) for number in (400, 401)]
    _, outputs = run([*requests, *twins], parted=True)
    assert outputs[400] == outputs[401] and len(outputs) == 402
