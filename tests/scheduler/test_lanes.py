"""The background yields to whoever waits, and is never left without anything."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from quire.engine import Engine
from quire.scheduler.lanes import LEAST_PASS, MOST_BEGUN, MOST_BEGUN_IN_A_HURRY, Lanes
from quire.scheduler.rows import Rows
from quire.scheduler.waiting import TURNS, Waiting
from quire.step import StepPlan
from tests.fakes import expected_output
from tests.scheduler.runs import drain, make_request, samples_of
from tests.scheduler.test_scheduler import setting


def background(number: int, tokens: int = 60, prompt: int = 8, **more: Any) -> Any:
    ids = [number % 7, *range(prompt - 1)]
    return samples_of(make_request(number, ids, tokens, background=True, **more))


def foreground(number: int, tokens: int = 4, prompt: int = 8, **more: Any) -> Any:
    return samples_of(make_request(number, [number % 5, *range(prompt - 1)], tokens, **more))


def planned(engine: Engine) -> StepPlan:
    plan = engine.scheduler.schedule()
    assert plan is not None
    engine.scheduler.commit(engine.executor.submit(plan).result(), 0.01)
    return plan


def full_of_background(rows: int = 10, **more: Any) -> Engine:
    engine = setting(**{"max_num_seqs": rows, "num_blocks": 2000, **more}).engine()
    for number in range(2 * rows):
        engine.add(background(number))
    for _ in range(4):
        planned(engine)
    assert engine.scheduler.num_running == rows
    return engine


def numbers(engine: Engine, rows: Any) -> set[int]:
    return {engine.scheduler.rows.sequence(row).request.number for row in rows}


def test_a_newcomer_takes_the_row_of_the_latest_and_has_the_pass_to_itself() -> None:
    engine = full_of_background()
    engine.add(foreground(100))
    plan = planned(engine)
    assert numbers(engine, [one.row for one in plan.prefill]) == {100}
    assert len(plan.decode.rows) == 0
    assert engine.scheduler.num_preemptions == 1
    running = numbers(engine, engine.scheduler.rows.running)
    assert running == {*range(9), 100}, "number 9 came last"


def test_as_many_rows_as_wait_but_a_tenth_is_kept() -> None:
    engine = full_of_background(rows=20)
    for number in range(100, 140):
        engine.add(foreground(number, tokens=30))
    planned(engine)
    assert engine.scheduler.lanes.num_background == 2
    assert engine.scheduler.num_running == 20


def test_everyone_gets_what_it_would_get_alone() -> None:
    engine = full_of_background(num_blocks=60, max_num_batched_tokens=32, optimism=0.01)
    wanted = [foreground(100 + i, tokens=10, prompt=20) for i in range(15)]
    done = {}
    for samples in wanted:
        engine.add(samples)
        engine.scheduler.lanes.attend()
        for _ in range(3):
            for sequence in engine.step().ended:
                done[sequence.request.number] = sequence
    done |= {number: sequence for (number, _), sequence in drain(engine).items()}
    assert len(done) == 35
    for sequence in done.values():
        assert sequence.output_ids.tolist() == expected_output(sequence.request, 0)


def test_while_others_wait_for_ever_the_background_still_has_a_tenth() -> None:
    engine = full_of_background(rows=10)
    number, passes = 1000, []
    for _ in range(200):
        while engine.scheduler.waiting.num_foreground < 5:
            engine.add(foreground(number, tokens=3, prompt=30))
            number += 1
        plan = planned(engine)
        rows = engine.scheduler.rows
        at = [*plan.decode.rows.tolist(), *(one.row for one in plan.prefill)]
        passes.append(any(rows.background[row] and rows.placement[row] for row in at))
    assert 200 // TURNS <= sum(passes) <= 60


def test_readers_get_passes_of_at_most_twice_the_time() -> None:
    """A pass is 10 ms and 1 ms for each position: with two readers, twelve may join."""
    rows, waiting = Rows(64), Waiting()
    lanes = Lanes(rows, waiting, lambda: 100.0)
    for number in range(40):
        [sequence] = foreground(number) if number < 2 else background(number)
        rows.enter(sequence, 10.0)
    rows.drawn[rows.running] = True
    for positions in (4, 30, 8, 50, 16, 60) * 30:
        lanes._times.observe(positions, 0.010 + 0.001 * positions)
    assert 10 <= lanes.spare(2048) <= 14
    joined, left = lanes.within(rows.running, 12)
    assert left == 0 and joined.tolist() == rows.running[:14].tolist()


def test_prompts_do_not_tell_what_a_row_costs() -> None:
    """A pass is 10 ms and 1 ms for each row that draws; of a prompt 100 tokens take 10 ms."""
    rows, waiting = Rows(64), Waiting()
    lanes = Lanes(rows, waiting, lambda: 100.0)
    for number in range(40):
        [sequence] = foreground(number) if number < 1 else background(number)
        rows.enter(sequence, 10.0)
    rows.drawn[rows.running] = True
    slice_of_prompt = SimpleNamespace(row=0, num_guessed=0)
    prompt: Any = SimpleNamespace(repeat=1, num_tokens=100, prefill=(slice_of_prompt,))
    for positions in (1, 12, 1, 8, 1, 1) * 30:
        rows_alone: Any = SimpleNamespace(repeat=1, num_tokens=positions, prefill=())
        lanes.observe(rows_alone, 0.010 + 0.001 * positions)
        lanes.observe(prompt, 0.020)
    assert 9 <= lanes.spare(2048) <= 13


def test_after_somebody_came_plans_are_short_and_one_at_a_time() -> None:
    now = [0.0]
    engine = full_of_background(max_repeat=8, depth=2)
    engine.scheduler.lanes._clock = lambda: now[0]
    assert planned(engine).repeat > 1
    engine.scheduler.lanes.attend()
    assert planned(engine).repeat == 1
    engine.step()
    assert len(engine._in_flight) == 1
    engine.step()
    assert len(engine._in_flight) == 0, "depth is 1 meanwhile"
    now[0] = 11.0
    assert planned(engine).repeat > 1


def test_where_others_may_come_a_pass_of_the_background_is_bounded() -> None:
    """A tenth of a millisecond for each position: a quarter of a second is 2,500 of them."""
    rows, waiting, now = Rows(64), Waiting(), [100.0]
    lanes = Lanes(rows, waiting, lambda: now[0])
    [sequence] = background(0)
    waiting.add(sequence)
    for positions in (4, 30, 8, 50, 16, 60) * 30:
        lanes._times.observe(positions, 0.010 + 0.0001 * positions)
    assert lanes.spare(16_384) == 16_384, "a run of its own has all of it"
    lanes.is_serving = True
    lanes.attend()
    assert lanes.spare(16_384) == 16, "somebody was here a moment ago"
    now[0] += 11
    assert 2_000 < lanes.spare(16_384) < 3_000
    now[0] += 60
    assert 4_000 < lanes.spare(16_384) < 6_000, "nobody was here for a minute"
    large: Any = SimpleNamespace(repeat=1, num_tokens=2_000, prefill=())
    lanes.observe(large, 0.1)
    assert lanes.spare(16_384) == 10_000, "a token of a large pass takes half as long"


def test_where_others_may_come_few_rows_of_the_background_begin_in_a_pass() -> None:
    """What the host does for each of them is waited for by all."""
    plenty = dict.fromkeys(("max_num_seqs", "max_num_batched_tokens", "num_blocks"), 4000)
    for is_serving, is_hurried, most in (
        (False, False, 200),
        (True, False, MOST_BEGUN),
        (True, True, MOST_BEGUN_IN_A_HURRY),
    ):
        engine = setting(**plenty).engine()
        engine.scheduler.lanes.is_serving = is_serving
        if is_hurried:
            engine.scheduler.lanes.attend()
        for number in range(200):
            engine.add(background(number, prompt=1))
        assert len(planned(engine).prefill) == most


def test_a_row_of_the_background_yields_even_where_there_is_only_one() -> None:
    engine = setting(max_num_seqs=1).engine()
    engine.add(background(0))
    planned(engine)
    engine.add(foreground(1))
    plan = planned(engine)
    assert numbers(engine, [one.row for one in plan.prefill]) == {1}
    assert len(drain(engine)) == 2


def ends_at(engine: Engine, number: int) -> int:
    """After how many further passes this one has ended."""
    for at in range(1, 200):
        plan = engine.scheduler.schedule()
        assert plan is not None
        report = engine.scheduler.commit(engine.executor.submit(plan).result(), 0.01)
        if any(s.request.number == number for s in report.ended):
            return at
    raise AssertionError(f"{number} has not ended")


def with_a_long_prompt(*, serving: bool) -> Engine:
    """A prompt of 1000 tokens was begun, and one of 40 came after it."""
    made = setting(num_blocks=400, max_num_batched_tokens=64, caching=False, serving=serving)
    engine = made.engine()
    engine.add(foreground(1, tokens=1, prompt=1000))
    planned(engine)
    engine.add(foreground(2, tokens=1, prompt=40))
    return engine


def test_a_short_prompt_begins_beside_a_long_one_and_leaves_it_the_rest() -> None:
    engine = with_a_long_prompt(serving=True)
    assert ends_at(engine, 2) == 2, "half of the next pass, and what is left of it"
    assert ends_at(engine, 1) == -(-1040 // 64) - 3, "no pass had room left"


def test_where_nobody_waits_prompts_go_on_one_after_the_other() -> None:
    assert ends_at(with_a_long_prompt(serving=False), 1) == -(-1000 // 64) - 1


def test_the_long_prompt_that_came_first_is_not_overtaken_for_ever() -> None:
    engine = with_a_long_prompt(serving=True)
    for number in range(3, 60):
        engine.add(foreground(number, tokens=1, prompt=60))
    assert ends_at(engine, 1) <= 1000 // 32


def test_no_request_has_more_of_a_pass_than_others_may_wait_for() -> None:
    engine = setting(num_blocks=1500, max_num_batched_tokens=1024, serving=True).engine()
    engine.add(foreground(1, tokens=1, prompt=3000))
    first = engine.scheduler.schedule()
    assert first is not None and first.num_tokens == 1024, "what a token takes is not known yet"
    engine.scheduler.commit(engine.executor.submit(first).result(), 5.0)
    assert planned(engine).num_tokens == LEAST_PASS
    engine.add(foreground(2, tokens=1, prompt=1000))
    assert [len(one.token_ids) for one in planned(engine).prefill] == [LEAST_PASS] * 2


def test_a_prompt_of_the_background_leaves_the_whole_pass_to_one_that_is_awaited() -> None:
    made = setting(num_blocks=800, max_num_batched_tokens=64, caching=False, serving=True)
    engine = made.engine()
    engine.add(background(1, prompt=1000))
    planned(engine)
    engine.add(foreground(2, tokens=1, prompt=1000))
    for _ in range(3):
        assert [len(one.token_ids) for one in planned(engine).prefill] == [64]
