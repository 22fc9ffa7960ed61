"""Single behaviours of the scheduler, on the fake executor."""

from __future__ import annotations

import numpy as np
import pytest

from quire.cache.pool import BlockPool
from quire.errors import DoesNotFit, EngineError, InvalidLogits
from quire.scheduler.limits import Limits
from quire.scheduler.repeats import FEW_ROWS
from quire.scheduler.scheduler import Scheduler
from quire.step import StepPlan, StepResult
from tests.fakes import FakeExecutor, expected_output
from tests.scheduler.runs import Setting, drain, make_request, run_all, samples_of


def setting(**changes: object) -> Setting:
    usual: dict[str, object] = {
        "num_blocks": 200,
        "block_size": 4,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 256,
        "max_repeat": 1,
        "depth": 1,
        "caching": True,
    }
    return Setting(**{**usual, **changes})  # type: ignore[arg-type]


def test_a_pool_of_12_blocks_finishes_64_sequences_of_10_blocks_each(long_mode: bool) -> None:
    """A quarter of them in the gate."""
    engine = setting(num_blocks=12, block_size=16, optimism=0.1).engine()
    requests = [
        make_request(i, list(range(i, i + 32)), 128) for i in range(64 if long_mode else 16)
    ]
    done = run_all(engine, requests)
    assert engine.scheduler.num_preemptions > 0
    for request in requests:
        assert done[(request.number, 0)].output_ids.tolist() == expected_output(request, 0)
    assert engine.scheduler.pool.num_free == 12


def test_eight_samples_compute_their_prompt_once_and_share_its_blocks() -> None:
    engine = setting().engine()
    prompt = list(range(10))  # two whole blocks and a half
    requests = [make_request(i, [i, *prompt[1:]], 6, n=8) for i in range(8)]
    for request in requests:
        engine.add(samples_of(request))
    engine.step()
    engine.step()
    assert engine.scheduler.num_running == 64
    assert engine.scheduler.pool.num_used == 8 * 3, "the prompts' blocks, once each"
    executor = engine.executor
    assert isinstance(executor, FakeExecutor)
    assert executor.computed_tokens == 8 * 10
    plan = engine.scheduler.schedule()
    assert plan is not None
    assert len(plan.copies) == 8 * 7, "each writer but the last holder copies the half block"
    assert engine.scheduler.pool.num_used == 8 * (2 + 8)


def test_samples_of_one_prompt_differ_and_each_is_what_it_would_be_alone() -> None:
    request = make_request(3, [1, 2, 3, 4, 5], 12, n=5)
    done = run_all(setting().engine(), [request])
    outputs = [done[(3, sample)].output_ids.tolist() for sample in range(5)]
    assert outputs == [expected_output(request, sample) for sample in range(5)]
    assert len({tuple(o) for o in outputs}) == 5


def test_an_aborted_prompt_claims_no_rows_for_its_samples() -> None:
    engine = setting(max_num_seqs=4, max_num_batched_tokens=4).engine()
    samples = samples_of(make_request(0, list(range(8)), 5, n=8))
    engine.add(samples)
    engine.step()
    assert engine.scheduler.num_running == 1, "half of its prompt is computed"
    engine.abort(samples)
    requests = [make_request(i, [i], 5) for i in range(1, 5)]
    for request in requests:
        engine.add(samples_of(request))
    for _ in range(3):
        engine.step()
    assert engine.scheduler.num_running == 4


def test_samples_that_find_no_row_run_later() -> None:
    request = make_request(0, [1, 2, 3, 4, 5, 6], 5, n=7)
    done = run_all(setting(max_num_seqs=3).engine(), [request])
    assert len(done) == 7
    for sample in range(7):
        assert done[(0, sample)].output_ids.tolist() == expected_output(request, sample)


def test_a_prompt_whose_tokens_end_with_a_block_needs_no_copy() -> None:
    engine = setting().engine()
    engine.add(samples_of(make_request(0, list(range(8)), 4, n=4)))
    engine.step()
    engine.step()
    plan = engine.scheduler.schedule()
    assert plan is not None and plan.copies == ()


def test_prompts_that_share_a_beginning_compute_it_once_even_in_one_step() -> None:
    engine = setting(block_size=16).engine()
    shared = list(range(100, 164))
    requests = [make_request(i, [*shared, i, i + 1], 1) for i in range(10)]
    done = run_all(engine, requests)
    assert [done[(i, 0)].num_cached for i in range(10)] == [0] + [64] * 9
    executor = engine.executor
    assert isinstance(executor, FakeExecutor)
    assert executor.computed_tokens == 66 + 9 * 2


def test_decode_rows_that_share_blocks_are_named_as_a_group() -> None:
    engine = setting(block_size=16).engine()
    shared = list(range(100, 164))
    for i in range(6):
        engine.add(samples_of(make_request(i, [*shared, i], 8)))
    engine.add(samples_of(make_request(9, list(range(300, 370)), 8)))
    engine.step()
    engine.step()
    plan = engine.scheduler.schedule()
    assert plan is not None
    (group,) = plan.groups
    assert len(group.blocks) == 4 and len(group.rows) == 6


def test_a_long_prompt_is_computed_in_chunks_beside_decode() -> None:
    engine = setting(max_num_batched_tokens=8, max_num_seqs=4).engine()
    requests = [make_request(0, [1], 20), make_request(1, list(range(30)), 3)]
    done = run_all(engine, requests)
    assert done[(1, 0)].output_ids.tolist() == expected_output(requests[1], 0)
    executor = engine.executor
    assert isinstance(executor, FakeExecutor)
    assert any(p.prefill and len(p.decode) for p in executor.plans)


def test_a_sequence_that_outgrows_the_whole_pool_fails_alone_with_the_numbers() -> None:
    engine = setting(num_blocks=5, block_size=4).engine()
    requests = [make_request(0, [1, 2, 3], 100), make_request(1, [4, 5], 6)]
    done = run_all(engine, requests)
    failed = done[(0, 0)]
    assert failed.finish_reason == "error" and isinstance(failed.error, DoesNotFit)
    assert "20" in str(failed.error) and "5 blocks of 4" in str(failed.error)
    assert failed.output_ids.tolist() == expected_output(requests[0], 0)[: len(failed.output_ids)]
    assert done[(1, 0)].output_ids.tolist() == expected_output(requests[1], 0)
    assert engine.scheduler.pool.num_free == 5


def test_a_prompt_that_is_longer_than_a_pool_full_of_its_beginning_fails_alone() -> None:
    engine = setting(num_blocks=4).engine()
    run_all(engine, [make_request(0, list(range(16)), 1)])
    done = run_all(engine, [make_request(1, [*range(16), 3], 1), make_request(2, [9], 2)])
    assert isinstance(done[(1, 0)].error, DoesNotFit)
    assert done[(2, 0)].finish_reason == "length"


def test_a_lower_priority_number_is_admitted_first() -> None:
    engine = setting(max_num_seqs=1).engine()
    requests = [make_request(i, [i + 1], 2, priority=p) for i, p in enumerate([5, 0, -3])]
    assert [key[0] for key in run_all(engine, requests)] == [2, 1, 0]


def test_endless_higher_priority_work_cannot_starve_a_waiting_request() -> None:
    now = [0.0]
    executor = FakeExecutor(200, 4)
    pool = BlockPool(200, block_size=4)
    limits = Limits(max_num_seqs=2, max_num_batched_tokens=64, max_wait=60.0)
    scheduler = Scheduler(pool, limits, clock=lambda: now[0])
    scheduler.add(samples_of(make_request(0, [7, 7], 3, priority=10)))
    number = 0
    while True:
        while len(scheduler.waiting) < 6:  # there is always more urgent work
            number += 1
            scheduler.add(samples_of(make_request(number, [number % 90], 3, priority=0)))
        plan = scheduler.schedule()
        assert plan is not None
        now[0] += 1.0
        ended = scheduler.commit(executor.submit(plan).result()).ended
        if any(s.request.number == 0 for s in ended):
            break
        assert now[0] < 75.0, "it waited longer than the bound and one service time"
    assert now[0] > 60.0, "until the bound, priorities held"


def test_a_sequence_preempted_three_times_is_left_in_peace() -> None:
    engine = setting(num_blocks=10, block_size=4, max_num_seqs=5, optimism=0.01).engine()
    requests = [make_request(i, [i], 30) for i in range(5)]
    done = run_all(engine, requests)
    assert engine.scheduler.num_preemptions >= 4
    assert max(s.num_preemptions for s in done.values()) <= 4


def test_a_preempted_sequence_finds_its_own_blocks_again() -> None:
    computed = {}
    for caching in (True, False):
        engine = setting(num_blocks=20, caching=caching, optimism=0.01).engine()
        run_all(engine, [make_request(0, list(range(40)), 12), make_request(1, [7] * 20, 24)])
        assert engine.scheduler.num_preemptions == 1
        assert isinstance(engine.executor, FakeExecutor)
        computed[caching] = engine.executor.computed_tokens
    # 51 and 43 tokens without preemption; then the second one's again, or only its last ones.
    assert computed[False] > 51 + 43 + 20
    assert computed[True] < 51 + 43 + 10


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_aborting_at_any_moment_frees_every_block(depth: int) -> None:
    for moment in range(12):
        engine = setting(depth=depth, max_num_batched_tokens=16).engine()
        victims = samples_of(make_request(0, list(range(20)), 9, n=3))
        other = make_request(1, [5, 6], 9)
        engine.add(victims)
        engine.add(samples_of(other))
        ended = []
        for _ in range(moment):
            ended += engine.step().ended
        engine.abort(victims)
        done = {s.request.number: s for s in ended} | {k[0]: s for k, s in drain(engine).items()}
        assert done[1].output_ids.tolist() == expected_output(other, 0)
        assert all(v.finish_reason is not None for v in victims)
        assert engine.scheduler.pool.num_free == 200


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_next_turn_finds_no_slot_that_a_stopped_row_never_wrote(depth: int) -> None:
    """A conversation goes on behind the stop token, which ends a block: the device froze the row
    there, though a plan in flight was to feed that token."""
    engine = setting(depth=depth).engine()
    free = make_request(2, [5], 30)
    drawn = expected_output(free, 0)
    stopped = make_request(2, [5], 30, stop_ids=[drawn[2]])
    answer = run_all(engine, [stopped])[(2, 0)].output_ids.tolist()
    assert answer == drawn[:3], "one block with its prompt"
    following = make_request(3, [5, *answer, 7, 8], 4)
    done = run_all(engine, [following])
    assert done[(3, 0)].output_ids.tolist() == expected_output(following, 0)


def test_rows_with_bad_logits_fail_and_the_others_go_on() -> None:
    class Faulty(FakeExecutor):
        def _run(self, plan: StepPlan) -> StepResult:
            result = super()._run(plan)
            sick = [
                i
                for i, row in enumerate(plan.sampled_rows())
                if self.rows[row].start.prompt_ids[0] == 66
            ]
            return StepResult(result.tokens, result.counts, failed=tuple(sick))

    engine = setting().engine()
    engine.executor = Faulty(200, 4)
    requests = [make_request(0, [66, 1], 5), make_request(1, [2, 3], 5)]
    done = run_all(engine, requests)
    assert isinstance(done[(0, 0)].error, InvalidLogits)
    assert done[(0, 0)].finish_reason == "error"
    assert done[(1, 0)].output_ids.tolist() == expected_output(requests[1], 0)
    assert engine.scheduler.pool.num_free == 200


def test_reset_forgets_everything_and_the_engine_goes_on() -> None:
    engine = setting().engine()
    engine.add(samples_of(make_request(0, [1, 2, 3], 50)))
    for _ in range(5):
        engine.step()
    engine.reset()
    assert engine.idle
    request = make_request(1, [1, 2, 3], 5)
    assert run_all(engine, [request])[(1, 0)].output_ids.tolist() == expected_output(request, 0)


def test_an_engine_with_nothing_to_do_says_so() -> None:
    with pytest.raises(EngineError, match="no progress"):
        setting().engine().step()


def test_repeat_grows_when_nothing_is_wasted_and_never_with_prefill() -> None:
    engine = setting(max_repeat=8, num_blocks=400).engine()
    requests = [make_request(i, [i, i], 65) for i in range(4)]
    run_all(engine, requests)
    executor = engine.executor
    assert isinstance(executor, FakeExecutor)
    assert {p.repeat for p in executor.plans if p.prefill} == {1}
    assert max(p.repeat for p in executor.plans) == 8


def test_few_rows_that_rest_shorten_no_plan_when_nobody_waits() -> None:
    """Rows of 8, 16, .. 64 tokens: the long ones go on in large plans, which end with them."""
    engine = setting(max_repeat=32, num_blocks=400).engine()
    run_all(engine, [make_request(i, [i, i], 8 * (i + 1) + 1) for i in range(8)])
    executor = engine.executor
    assert isinstance(executor, FakeExecutor)
    repeats = [p.repeat for p in executor.plans if not p.prefill]
    assert sum(repeats) == 64
    assert repeats[0] == 32


def test_of_many_rows_none_rest_for_long() -> None:
    """Products of many rows take as long for those that rest: a plan ends with its short rows."""
    engine = setting(
        max_repeat=32, num_blocks=4000, max_num_seqs=256, max_num_batched_tokens=1024
    ).engine()
    short = [make_request(i, [i, i], 9) for i in range(200)]
    run_all(engine, short + [make_request(200 + i, [i, i], 65) for i in range(56)])
    executor = engine.executor
    assert isinstance(executor, FakeExecutor)
    decoding = [p for p in executor.plans if not p.prefill]
    assert [p.repeat for p in decoding if len(p.decode) > FEW_ROWS] == [8]
    assert max(p.repeat for p in decoding) == 32


def test_a_row_that_may_stop_soon_repeats_less() -> None:
    engine = setting(max_repeat=32, num_blocks=400).engine()
    requests = [make_request(i, [i, i], 60, stop_ids=[998]) for i in range(4)]
    run_all(engine, requests)
    executor = engine.executor
    assert isinstance(executor, FakeExecutor)
    assert max(p.repeat for p in executor.plans) <= 2


def test_a_row_that_may_not_stop_yet_repeats_as_if_it_never_did() -> None:
    engine = setting(max_repeat=32, num_blocks=400).engine()
    asked = {"stop_ids": [998], "min_tokens": 50}
    run_all(engine, [make_request(i, [i, i], 60, **asked) for i in range(4)])
    executor = engine.executor
    assert isinstance(executor, FakeExecutor)
    repeats = [p.repeat for p in executor.plans if not p.prefill]
    assert repeats[0] == 32 and repeats[-1] <= 2


def test_one_guided_row_does_not_hold_all_others_to_single_steps() -> None:
    engine = setting(
        max_repeat=32, num_blocks=4000, max_num_seqs=128, max_num_batched_tokens=1024
    ).engine()
    run_all(engine, [make_request(i, [i, i], 41, guided=i == 7) for i in range(400)])
    executor = engine.executor
    assert isinstance(executor, FakeExecutor)
    beside = {p.repeat for p in executor.plans if len(p.single)}
    assert beside == {1, 4}
    assert max(p.repeat for p in executor.plans) > 4, "when it is gone"


def test_guided_rows_that_nobody_would_outlast_are_not_made_to_pause() -> None:
    for count, rows in ((100, 128), (300, 20)):  # nobody waits; too many of those that run
        engine = setting(
            max_repeat=32, num_blocks=4000, max_num_seqs=rows, max_num_batched_tokens=1024
        ).engine()
        run_all(engine, [make_request(i, [i, i], 41, guided=i == 7) for i in range(count)])
        executor = engine.executor
        assert isinstance(executor, FakeExecutor)
        assert max(p.repeat for p in executor.plans if len(p.single)) == 1


class NothingFound:
    """A text without its stop strings."""

    def __init__(self) -> None:
        self.num_fed = 0

    def follow(self, token_ids: list[int]) -> tuple[int, str] | None:
        self.num_fed += len(token_ids)
        return None


def test_rows_with_stop_strings_repeat_as_those_that_may_stop() -> None:
    engine = setting(max_repeat=32, num_blocks=4000).engine()
    watches = []
    for i in range(4):
        samples = samples_of(make_request(i, [i, i], 500))
        watches.append(NothingFound())
        samples[0].watch = watches[-1]
        engine.add(samples)
    while not engine.idle:
        engine.step()
    executor = engine.executor
    assert isinstance(executor, FakeExecutor)
    repeats = {p.repeat for p in executor.plans}
    assert max(repeats) >= 16 and all(watch.num_fed == 500 for watch in watches)


def test_decode_never_writes_into_a_block_with_other_holders() -> None:
    engine = setting(num_blocks=60, depth=2).engine()
    for i in range(4):
        engine.add(samples_of(make_request(i, list(range(6 + i)), 12, n=4)))
    pool, rows = engine.scheduler.pool, engine.scheduler.rows
    submit = engine.executor.submit

    def checked(plan: StepPlan) -> object:
        written = rows.blocks[0, plan.decode.rows, plan.decode.positions // 4]
        assert (pool.holders[written] == 1).all()
        assert len(np.unique(written)) == len(written)
        return submit(plan)

    engine.executor.submit = checked  # type: ignore[method-assign,assignment]
    drain(engine)


def test_forced_tokens_are_computed_together_and_not_drawn() -> None:
    request = make_request(0, [1, 2, 3], 60, guided=True)
    engine = setting().engine()
    done = run_all(engine, [request])
    assert done[(0, 0)].output_ids.tolist() == expected_output(request, 0, guided=True)
    assert isinstance(engine.executor, FakeExecutor)
    chunks = [len(s.token_ids) for p in engine.executor.plans for s in p.prefill]
    assert max(chunks[1:]) > 1, "no forced tokens were computed as a slice"
    assert engine.num_steps < 60


def test_rows_that_want_logprobs_draw_every_token() -> None:
    request = make_request(0, [1, 2, 3], 30, guided=True, logprobs=0)
    done = run_all(setting().engine(), [request])
    assert done[(0, 0)].output_ids.tolist() == expected_output(request, 0)
