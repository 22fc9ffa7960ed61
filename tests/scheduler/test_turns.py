"""Rows by masks: all together, or one half while the host follows the other."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest

from quire.engine import Engine
from quire.executor.executor import PendingStep
from quire.request import Ints
from quire.scheduler import turns
from quire.scheduler.ahead import Ahead
from quire.scheduler.beam_rule import SearchRules
from quire.scheduler.beams import BeamGroup
from quire.scheduler.pacing import Pacing
from quire.scheduler.sequence import Sequence
from quire.step import StepPlan, StepResult
from tests.fakes import Done, FakeExecutor, FakeGuide
from tests.scheduler.beam_runs import check_group, lead_of
from tests.scheduler.runs import Setting, check_run, drain, make_request, random_requests
from tests.scheduler.runs import random_setting as any_setting

EASY = (0.3, 0.12)  # milliseconds of a step, and of each row in it: a small model
HARD = (9.0, 0.01)  # a step takes what reading the weights takes


@dataclass
class Computed:
    """A result that comes when the device is done."""

    device: Device
    counts: Ints  # tokens of each row
    at: float

    def result(self) -> StepResult:
        self.device.now = max(self.device.now, self.at)
        shape = len(self.counts), int(self.counts.max(initial=1))
        return StepResult(np.ones(shape, np.int32), self.counts)


class Device(FakeExecutor):
    """Takes its time for one plan after the other; `now` is the host's clock."""

    cost, now, free = EASY, 0.0, 0.0
    launching = 0.0  # milliseconds of the host for a plan

    def submit(self, plan: StepPlan) -> PendingStep:  # type: ignore[override]
        fixed, each = self.cost
        self.sizes.append(len(plan.decode))
        self.repeats.append(plan.repeat)
        self.now += self.launching / 1e3
        took = plan.repeat * (fixed + each * len(plan.decode)) / 1e3
        self.free = max(self.now, self.free) + took
        rows, tried = plan.sampled_rows().tolist(), plan.tried.tolist()
        drawn = dict(zip(tried, plan.num_tried.tolist(), strict=True))
        counts = np.array([drawn.get(row, 1) for row in rows], np.int32)
        return Computed(self, counts, self.free)

    @cached_property
    def sizes(self) -> list[int]:
        """Of the plans so far."""
        return []

    @cached_property
    def repeats(self) -> list[int]:
        """Their steps."""
        return []


class Following(FakeGuide):
    """Takes the host's time for each token, and forces none."""

    may_force = False

    def __init__(self, device: Device, milliseconds: float) -> None:
        super().__init__()
        self.device, self.seconds = device, milliseconds / 1e3

    def accept(self, token_id: int) -> bool:
        self.device.now += self.seconds
        return True

    def try_accept(self, token_id: int) -> bool:
        return self.accept(token_id)

    def forced(self) -> list[int]:
        return []


def engine_of(
    rows: int, cost: tuple[float, float], *, ahead: bool = False
) -> tuple[Engine, Device]:
    """`ahead`: rows may go on without their masks, all of which stands."""
    device, most = Device(40 * rows, 16), 8 if ahead else 1
    device.cost = cost
    setting = Setting(40 * rows, 16, rows, 8 * rows, max_repeat=most, depth=2, caching=False)
    pacing = Pacing(apart=ahead)
    return setting.engine(pacing, device=device, clock=lambda: device.now), device


def run(
    rows: int,
    cost: tuple[float, float],
    each: float,
    *,
    always: bool | None = None,
    ahead: bool = False,
    launching: float = 0.0,
) -> tuple[float, Engine]:
    """Seconds for twice as many answers as there are rows, of two lengths; `always`: the way they
    go is not chosen, but this one."""
    engine, device = engine_of(rows, cost, ahead=ahead)
    device.launching = launching
    if always is not None:
        engine.scheduler.turns.by_turns = always
        engine.scheduler.turns._turn = lambda: None  # type: ignore[method-assign]
    for i in range(2 * rows):
        request = make_request(i, [1, 2, i % 99], 320 >> i % 2)
        engine.add([Sequence(request, order=i, guide=Following(device, each))])
    assert len(drain(engine)) == 2 * rows
    return device.now, engine


def test_a_host_as_slow_as_its_device_is_hidden_behind_it() -> None:
    chosen, engine = run(20, EASY, each=0.12)
    together, _ = run(20, EASY, each=0.12, always=False)
    halves, _ = run(20, EASY, each=0.12, always=True)
    assert halves < 0.8 * together
    assert chosen < 1.05 * halves
    assert engine.scheduler.turns.by_turns


def test_where_a_step_costs_what_its_weights_cost_rows_go_together() -> None:
    chosen, engine = run(20, HARD, each=0.02)
    together, _ = run(20, HARD, each=0.02, always=False)
    halves, _ = run(20, HARD, each=0.02, always=True)
    assert together < 0.7 * halves
    assert chosen < 1.05 * together
    assert not engine.scheduler.turns.by_turns


def test_rows_that_begin_apart_are_brought_together() -> None:
    """Their prompts fit into several plans, of which two are on their way at once."""
    engine, device = engine_of(64, HARD)
    for i in range(64):
        prompt = [i % 99] * 30
        engine.add([Sequence(make_request(i, prompt, 40), guide=Following(device, 0.02))])
    drain(engine)
    assert len({size for size in device.sizes if size}) > 2, "they do not begin apart"
    assert device.sizes.count(64) > 30


def test_rows_ahead_of_their_masks_go_all_together() -> None:
    took, engine = run(20, EASY, each=0.02, ahead=True, launching=6.0)
    alone, _ = run(20, EASY, each=0.02, launching=6.0)
    assert isinstance(engine.executor, Device)
    assert not engine.scheduler.turns.by_turns and took < 0.6 * alone
    assert sum(repeat > 1 for repeat in engine.executor.repeats) > turns.KEPT


def test_how_far_rows_go_ahead_is_judged_for_as_many_rows_as_a_plan_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told, took = [], Ahead.took

    def spied(self: Ahead, steps: int, seconds: float, num_rows: int) -> None:
        told.append(num_rows)
        took(self, steps, seconds, num_rows)

    monkeypatch.setattr(Ahead, "took", spied)
    run(20, EASY, each=0.02, ahead=True, launching=6.0)
    assert max(told) == 20 and told.count(20) > 20


def test_a_half_goes_step_by_step() -> None:
    _, engine = run(20, EASY, each=0.02, always=True, ahead=True, launching=6.0)
    assert isinstance(engine.executor, Device) and set(engine.executor.repeats) == {1}


def test_a_few_rows_are_not_halved() -> None:
    _, engine = run(turns.LEAST_ROWS - 1, EASY, each=0.5)
    assert isinstance(engine.executor, Device)
    assert not engine.scheduler.turns.by_turns
    assert engine.executor.sizes.count(turns.LEAST_ROWS - 1) > 250


class Parting(FakeExecutor):
    """Counts how often a plan decodes some beams of a search, but not all."""

    num_parted = 0
    searches: list[BeamGroup]

    def submit(self, plan: StepPlan) -> Done:
        decoded = {*plan.decode.rows.tolist()}
        for group in self.searches:
            self.num_parted += 0 < len(decoded.intersection(group.places)) < len(group.places)
        return super().submit(plan)


def test_searches_find_the_same_when_their_beams_are_parted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fifteen rows of five searches, of which half are planned at once."""
    monkeypatch.setattr(turns, "LEAST_ROWS", 2)
    device = Parting(200, 4)
    setting = Setting(200, 4, 15, 64, max_repeat=1, depth=2, caching=True)
    engine = setting.engine(device=device)
    engine.scheduler.turns.by_turns = True
    engine.scheduler.turns._turn = lambda: None  # type: ignore[method-assign]
    rules = SearchRules(width=3, max_tokens=12)
    requests = [make_request(i, [5, 6, i], 12, guided=True) for i in range(8)]
    leads = [lead_of(request, rules, order=i) for i, request in enumerate(requests)]
    device.searches = [lead.group for lead in leads if isinstance(lead.group, BeamGroup)]
    for lead in leads:
        engine.add([lead])
    done = drain(engine)
    for request in requests:
        check_group(done[request.number, 0], request, rules)
    assert device.num_parted > 10


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way is changed every few tokens, with two rows and more."""
    few = {
        "LEAST_ROWS": 2,
        "KEPT": 2,
        "KEPT_AT_MOST": 3,
        "TIMED": 2,
        "TIMED_AT_LEAST": 1,
        "PASSED": 0,
    }
    for name, value in few.items():
        monkeypatch.setattr(turns, name, value)


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("seed", range(16))
def test_nobody_writes_anything_else_for_it(seed: int) -> None:
    """Rows by masks and others, whatever the clock says."""
    rng = random.Random(seed)
    requests = random_requests(rng, guided=rng.choice([0.5, 1.0]))
    longest = max(r.num_prompt + r.max_tokens for r in requests)
    setting = dataclasses.replace(any_setting(rng, longest), depth=rng.choice([2, 3]))
    check_run(setting.engine(clock=lambda: rng.random() * 1e3), requests, seed)
