"""LoRA adapters in the scheduler: never more at once than allowed, and none waits for ever."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from quire.cache.pool import BlockPool
from quire.engine import Engine
from quire.errors import AdapterFailed, QuireError
from quire.request import Adapter, Request
from quire.sampling_params import SamplingParams
from quire.scheduler.limits import Limits
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.sequence import Sequence
from quire.step import StepPlan
from tests.fakes import FakeExecutor, expected_output

BLOCKS, SIZE = 64, 4


class CountingExecutor(FakeExecutor):
    """Notices which adapters rows have."""

    def __init__(self, most: int, *, max_tokens: int) -> None:
        super().__init__(BLOCKS, SIZE, max_tokens=max_tokens)
        self.most, self.of_row, self.seen = most, dict[int, int](), list[int]()

    def submit(self, plan: StepPlan):  # type: ignore[no-untyped-def]
        for row in plan.ends.tolist():
            self.of_row.pop(row, None)
        for start in plan.starts:
            self.of_row[start.row] = start.adapter
            self.seen.append(start.adapter)
        assert len({*self.of_row.values()} - {0}) <= self.most
        return super().submit(plan)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def request(number: int, adapter: int, *, tokens: int = 6, background: bool = False) -> Request:
    made = Request(
        number=number,
        prompt_ids=np.array([number % 7 + 1, 5, adapter + 1], np.int32),
        params=SamplingParams(max_tokens=tokens),
        max_tokens=tokens,
        noise_key=number + 1,
        background=background,
    )
    by = Adapter(adapter, f"adapter {adapter}", "digest") if adapter else None
    return made.adapted_by(by)


def make_engine(
    most: int, *, rows: int = 4, clock: Clock | None = None, hold: object = None
) -> tuple[Engine, CountingExecutor]:
    pool = BlockPool(BLOCKS, block_size=SIZE, caching=True)
    executor = CountingExecutor(most, max_tokens=32)
    limits = Limits(max_num_seqs=rows, max_num_batched_tokens=32, max_adapters=most, max_wait=60.0)
    scheduler = Scheduler(
        pool,
        limits,
        hold_adapter=hold or (lambda number: None),  # type: ignore[arg-type]
        clock=clock or Clock(),
    )
    return Engine(scheduler, executor), executor


def drained(engine: Engine) -> Iterator[Sequence]:
    while not engine.idle:
        yield from engine.step().ended


@pytest.mark.parametrize("seed", range(6))
def test_at_most_so_many_run_and_all_come_to_their_end(seed: int) -> None:
    chance = random.Random(seed)
    most = chance.randint(1, 3)
    engine, executor = make_engine(most, rows=chance.randint(2, 6))
    asked = {i: request(i, chance.randint(0, 5), tokens=chance.randint(1, 9)) for i in range(40)}
    for i, one in asked.items():
        engine.add([Sequence(one, 0, i)])
    gone = chance.sample(range(40), 5)
    waiting = {s.request.number: s for s in engine.scheduler.waiting}
    assert len(waiting) == len(engine.scheduler.waiting) == 40
    engine.step()
    assert len(list(engine.scheduler.waiting)) == len(engine.scheduler.waiting)
    engine.abort([waiting[i] for i in gone if waiting[i].waiting])
    ended = {s.request.number: s.output_ids.tolist() for s in drained(engine)}
    aborted = {i for i in gone if waiting[i].finish_reason == "abort"}
    assert ended.keys() == asked.keys() - aborted
    for number, ids in ended.items():
        assert ids == expected_output(asked[number], 0)
    assert len(engine.scheduler.waiting) == 0 and executor.seen


@pytest.mark.parametrize("seed", range(6))
def test_who_waits_too_long_for_an_adapter_is_counted_once(seed: int) -> None:
    chance, clock = random.Random(seed), Clock()
    engine, _ = make_engine(chance.randint(1, 2), rows=2, clock=clock)
    for i in range(30):
        one = replace(request(i, chance.randint(0, 4)), priority=chance.randint(0, 2))
        engine.add([Sequence(one, 0, chance.randint(0, 99))])
    ended = 0
    while not engine.idle:
        ended += len(engine.step().ended)
        clock.now += 7.0
        assert len({id(s) for s in engine.scheduler.waiting}) == len(engine.scheduler.waiting)
        assert len([*engine.scheduler.waiting]) == len(engine.scheduler.waiting)
    assert ended == 30


def test_others_go_past_who_has_no_place() -> None:
    engine, executor = make_engine(1, rows=4)
    for i, adapter in enumerate([1, 2, 1, 0, 2, 1, 2]):
        engine.add([Sequence(request(i, adapter), 0, i)])
    assert len([*drained(engine)]) == 7
    # All of the first adapter and the base before the second one's turn, in their order.
    assert executor.seen == [1, 1, 0, 1, 2, 2, 2]


def test_a_stream_for_one_adapter_starves_no_other() -> None:
    clock = Clock()
    engine, executor = make_engine(1, rows=2, clock=clock)
    engine.add([Sequence(request(0, 1), 0, 0)])
    engine.add([Sequence(request(1, 2), 0, 1)])
    number, began = 2, None
    for _ in range(400):
        while len(engine.scheduler.waiting) < 3:
            engine.add([Sequence(request(number, 1), 0, number)])
            number += 1
        engine.step()
        clock.now += 1.0
        if 2 in executor.seen:
            began = clock.now - 1000.0
            break
    assert began is not None and 60.0 < began < 100.0


def test_the_foreground_does_not_wait_for_the_background_s_adapter() -> None:
    engine, executor = make_engine(1, rows=3)
    for i in range(12):
        engine.add([Sequence(request(i, 1, background=True), 0, i)])
    engine.step()
    engine.add([Sequence(request(12, 2), 0, 12)])
    assert len([*drained(engine)]) == 13
    assert executor.seen.index(2) <= 4  # behind what had begun, before all that had not


def test_an_adapter_that_cannot_be_read_ends_its_own_rows() -> None:
    def hold(number: int) -> QuireError | None:
        return AdapterFailed("gone") if number == 2 else None

    engine, _ = make_engine(2, hold=hold)
    for i, adapter in enumerate([1, 2, 3, 2, 0]):
        engine.add([Sequence(request(i, adapter), 0, i)])
    ended = {s.request.number: s for s in drained(engine)}
    assert {i for i, s in ended.items() if s.error is not None} == {1, 3}
    assert len(ended[0].output_ids) == 6


def test_kv_is_never_shared_across_adapters_or_with_a_caller_s_salt() -> None:
    plain, one, other = (request(3, adapter) for adapter in (0, 1, 2))
    renamed = request(3, 0).adapted_by(Adapter(9, "adapter 1", "other digest"))
    salts = [r.cache_salt for r in (plain, one, other, renamed)]
    assert len({*salts}) == 4 and all("\0" in salt for salt in salts[1:])
