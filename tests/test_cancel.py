"""Cancelling requests while a run goes on: everything comes back, and no other row notices."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from quire import LLM, SamplingParams
from quire.errors import InvalidRequest
from quire.outputs import RequestOutput
from quire.plan.lengths import OutputLengths
from quire.request import Request
from quire.results.finished import Results
from quire.run import Refused, Run, Window
from tests.fakes import expected_output
from tests.scheduler.runs import Setting, make_request

SETTING = Setting(
    num_blocks=900,
    block_size=4,
    max_num_seqs=64,
    max_num_batched_tokens=256,
    max_repeat=8,
    depth=2,
    caching=True,
)


@dataclass
class AsGiven:
    """A planner that keeps the order; requests named in `duplicates` repeat an earlier one."""

    duplicates: dict[int, int]

    def order(self, requests: list[Request]) -> Any:
        running = [i for i in range(len(requests)) if i not in self.duplicates]
        return SimpleNamespace(order=np.array(running), duplicates=self.duplicates)


def run_on(engine: Any, duplicates: dict[int, int] | None = None, **options: Any) -> Run:
    return Run(engine, AsGiven(duplicates or {}), OutputLengths(), Results(None), **options)


def tokens(output: RequestOutput) -> list[list[int]]:
    return [list(answer.token_ids) for answer in output.outputs]


def requests(count: int, rng: random.Random) -> list[Request]:
    preamble = [rng.randrange(50) for _ in range(8)]
    made = []
    for number in range(count):
        prompt = [*preamble, *(rng.randrange(50) for _ in range(rng.randint(1, 9)))]
        made.append(make_request(number, prompt, rng.randint(1, 12), n=rng.choice([1, 1, 1, 2])))
    return made


def test_a_fifth_of_thousands_cancelled_leave_the_others_as_they_were(long_mode: bool) -> None:
    rng, count = random.Random(7), 5000 if long_mode else 1000
    asked = requests(count, rng)
    victims = rng.sample(range(count), count // 5)
    engine = SETTING.engine()
    run = run_on(engine, between_steps=lambda: cancel_some())

    def cancel_some() -> None:
        for _ in range(rng.choice([0, 0, 1, 5])):
            if victims:
                run.cancel(victims.pop())

    outputs: dict[int, RequestOutput] = {}
    for index, output in run.outputs([list(asked)]):
        assert index not in outputs, "it came out twice"
        outputs[index] = output
    assert sorted(outputs) == list(range(count))
    aborted = {i for i, o in outputs.items() if o.outputs[-1].finish_reason == "abort"}
    assert len(aborted) > 0.7 * count // 5, "too few were still at work when they were cancelled"
    for index, request in enumerate(asked):
        whole = [expected_output(request, s) for s in range(request.params.n)]
        for answer, expected in zip(tokens(outputs[index]), whole, strict=True):
            assert answer == (expected[: len(answer)] if index in aborted else expected)
    assert engine.idle and engine.scheduler.pool.num_free == SETTING.num_blocks


def test_one_of_several_equal_requests_can_be_cancelled_alone() -> None:
    for victim, count in ((0, 2), (1, 2), (0, 3), (1, 3), (2, 3)):
        one = make_request(0, [1, 2, 3], 9)
        asked: Window = [one, *(replace(one, number=i) for i in range(1, count))]
        engine = SETTING.engine()
        run = run_on(engine, dict.fromkeys(range(1, count), 0))
        results = run.outputs([asked, []])
        run_cancelled_once(run, victim, engine)
        outputs = dict(results)
        assert outputs[victim].outputs[0].finish_reason == "abort"
        for other in {*range(count)} - {victim}:
            assert tokens(outputs[other]) == [expected_output(one, 0)]
        assert engine.idle and not run._pending


def run_cancelled_once(run: Run, victim: int, engine: Any) -> None:
    """Cancel after the first step; that it is said twice costs no other request anything."""
    step = engine.step

    def stepping() -> Any:
        engine.step = step
        report = step()
        run.cancel(victim)
        run.cancel(victim)
        return report

    engine.step = stepping


def test_all_of_several_equal_requests_cancelled_end_the_work() -> None:
    one = make_request(0, [1, 2, 3], 500)
    engine = SETTING.engine()
    run: Run = run_on(engine, {1: 0}, between_steps=lambda: cancel_both())

    def cancel_both() -> None:
        run.cancel(0)
        run.cancel(1)

    outputs = dict(run.outputs([[one, replace(one, number=1)]]))
    assert [outputs[i].outputs[0].finish_reason for i in (0, 1)] == ["abort", "abort"]
    assert engine.num_steps < 20 and engine.scheduler.pool.num_free == SETTING.num_blocks


class NeverReady:
    def done(self) -> bool:
        return False

    def result(self) -> Any:
        raise AssertionError("not asked for")


def test_a_request_whose_grammar_is_being_compiled_can_be_cancelled() -> None:
    guided, free = make_request(0, [1], 4, stop_token_ids=[7]), make_request(1, [2], 4)
    engine = SETTING.engine()
    run: Run = run_on(
        engine,
        compile_grammar=lambda params: NeverReady() if params.stop_token_ids else None,
        between_steps=lambda: run.cancel(0),
    )
    outputs = dict(run.outputs([[guided, free]]))
    assert outputs[0].outputs[0].finish_reason == "abort"
    assert tokens(outputs[1]) == [expected_output(free, 0)]


class ReadyAfter:
    """A grammar that allows all, compiled once so many others have ended."""

    def __init__(self, count: int, ended: list[int]) -> None:
        self._count, self._ended = count, ended

    def done(self) -> bool:
        return len(self._ended) >= self._count

    def result(self) -> Any:
        assert self.done(), "waited for while another was ready"
        return self

    def matcher(self) -> Any:
        return None


def test_what_is_ready_does_not_wait_for_what_is_older() -> None:
    ended: list[int] = []
    older, ready = make_request(0, [1], 4, stop_token_ids=[7]), make_request(1, [2], 4)
    run = run_on(
        SETTING.engine(),
        compile_grammar=lambda params: ReadyAfter(len(params.stop_token_ids or ()), ended),
    )
    for index, _ in run.outputs([[older, ready]]):
        ended.append(index)
    assert ended == [1, 0]


def test_what_comes_later_does_not_wait_for_what_is_not_ready() -> None:
    ended: list[int] = []
    early, late = make_request(0, [1], 4, stop_token_ids=[7]), make_request(1, [2], 4)
    run = run_on(
        SETTING.engine(),
        compile_grammar=lambda params: ReadyAfter(len(params.stop_token_ids or ()), ended),
    )
    for index, _ in run.outputs([[early], [], [late]]):
        ended.append(index)
    assert ended == [1, 0]


def test_cancelling_what_ended_or_never_was_does_nothing() -> None:
    run = run_on(SETTING.engine())
    asked: Window = [make_request(0, [1], 2), Refused(1, InvalidRequest("no"))]
    outputs = {}
    for index, output in run.outputs([asked]):
        run.cancel(0 if index == 0 else 1)
        run.cancel(99)
        outputs[index] = output
    assert sorted(outputs) == [0, 1] and outputs[0].outputs[0].finish_reason == "length"


def test_cancelling_where_an_output_of_the_same_step_is_taken() -> None:
    asked = [make_request(number, [number], 3) for number in range(6)]
    engine = SETTING.engine()
    run = run_on(engine)
    seen = []
    for index, _ in run.outputs([list(asked)]):
        seen.append(index)
        for number in range(6):
            run.cancel(number)
    assert sorted(seen) == list(range(6))
    assert engine.scheduler.pool.num_free == SETTING.num_blocks


@pytest.fixture(scope="module")
def llm(default_model: Any) -> Iterator[LLM]:
    with LLM("smollm2", kv_cache_memory_bytes=96 << 20) as made:
        yield made


def test_cancelled_rows_of_the_default_model_change_no_other_row(llm: LLM) -> None:
    prompts = [f"Item {i}: the" for i in range(40)]
    params = SamplingParams(temperature=0.7, seed=3, max_tokens=12, ignore_eos=True)
    whole = [list(o.outputs[0].token_ids) for o in llm.generate(prompts, params, use_tqdm=False)]
    session, rng = llm._session, random.Random(1)
    windows, _ = session.intake.read(prompts, params)
    [window] = windows
    victims = rng.sample([item.number for item in window], 12)
    run = session.new_run(lambda: run.cancel(victims.pop()) if victims else None)
    outputs = dict(run.outputs([window]))
    assert len(outputs) == 40
    for index, output in outputs.items():
        [answer] = output.outputs
        ids = list(answer.token_ids)
        assert ids == whole[index] or (
            answer.finish_reason == "abort" and ids == whole[index][: len(ids)]
        )
    assert sum(o.outputs[0].finish_reason == "abort" for o in outputs.values()) == 12
    pool = session.engine.scheduler.pool
    assert pool.num_free == pool.num_blocks


def test_watched_tokens_of_random_runs_join_to_the_answers() -> None:
    rng = random.Random(3)
    for seed in range(60):
        asked = [replace(r, watched=rng.random() < 0.5) for r in requests(12, rng)]
        setting = replace(
            SETTING, num_blocks=rng.choice([24, 60]), depth=rng.choice([1, 2, 3]), max_num_seqs=5
        )
        partial: dict[tuple[int, int], list[int]] = {}
        for index, output in run_on(setting.engine()).outputs([list(asked)]):
            for answer in output.outputs:
                before = partial.get((index, answer.index), [])
                assert list(answer.token_ids[: len(before)]) == before, seed
                assert output.finished or asked[index].watched
                partial[index, answer.index] = list(answer.token_ids)
        for index, request in enumerate(asked):
            for sample in range(request.params.n):
                assert partial[index, sample] == expected_output(request, sample)


def test_an_unwatched_run_reports_ends_alone() -> None:
    engine = SETTING.engine()
    run = run_on(engine)
    asked: Window = [make_request(i, [i, 1], 8) for i in range(20)]
    results = list(run.outputs([asked]))
    assert len(results) == 20 and all(output.finished for _, output in results)
    assert not np.any(engine.scheduler.rows.watched)
