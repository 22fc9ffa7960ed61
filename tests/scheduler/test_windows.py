"""Blocks behind windows come back while rows run, and nothing else changes."""

from __future__ import annotations

import pytest

from quire.cache.groups import Windows, blocks_held
from quire.errors import DoesNotFit
from tests.fakes import expected_output
from tests.scheduler.beam_runs import check_everything_returned, check_random_beams
from tests.scheduler.runs import (
    SOME_WINDOWS,
    Setting,
    check_random_run,
    drain,
    make_request,
    run_all,
    samples_of,
)
from tests.scheduler.test_scoring import check_random_mix

WINDOWED = SOME_WINDOWS[1:]


def setting(windows: Windows, num_blocks: int, **changes: object) -> Setting:
    usual = {
        "num_blocks": num_blocks,
        "block_size": 4,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 32,
        "max_repeat": 8,
        "depth": 2,
        "caching": True,
        "windows": windows,
    }
    return Setting(**{**usual, **changes})  # type: ignore[arg-type]


def test_random_runs_give_what_each_request_gives_alone() -> None:
    """Chunks, prefix hits, forks, forced tokens, guesses and preemption over every mix of windows;
    the fake executor fails on a block that was given back, and all are free in the end."""
    assert sum(check_random_run(seed, WINDOWED) for seed in range(20)) > 20


def test_random_searches_find_what_each_finds_alone() -> None:
    for seed in range(10):
        check_random_beams(seed, WINDOWED)


def test_random_runs_score_what_each_request_scores_alone() -> None:
    runs = [check_random_mix(seed, WINDOWED) for seed in range(14)]
    assert sum(preemptions for preemptions, _ in runs) > 20
    assert sum(cached for _, cached in runs) > 50


@pytest.mark.long
@pytest.mark.parametrize("block", range(40))
def test_many_random_runs(block: int) -> None:
    for seed in range(700_000 + block * 100, 700_000 + block * 100 + 100):
        check_random_run(seed, WINDOWED)
        check_random_beams(seed, WINDOWED)
        check_random_mix(seed, WINDOWED)


def peak_rows(windows: Windows, num_blocks: int) -> int:
    """The most of 16 requests of 80 tokens that such a pool runs at once."""
    engine = setting(windows, num_blocks, depth=1).engine()
    requests = [make_request(i, [i] * 60, 20) for i in range(16)]
    for order, request in enumerate(requests):
        engine.add(samples_of(request, order))
    most = 0
    while not engine.idle:
        engine.step()
        most = max(most, engine.scheduler.num_running)
    check_everything_returned(engine)
    return most


def test_a_pool_admits_more_rows_of_a_model_with_windows() -> None:
    full, windowed = (None,) * 6, (None, 12, 12, 12, 12, 12)
    num_blocks = blocks_held(full, 4, 80) * 3
    assert peak_rows(full, num_blocks) == 3
    assert peak_rows(windowed, num_blocks) >= 7


def test_a_pool_holds_longer_prompts_of_a_model_with_windows() -> None:
    full, windowed = (None,) * 6, (None, 12, 12, 12, 12, 12)
    num_blocks, long = blocks_held(full, 4, 100), make_request(0, [7] * 300, 20)
    failed = run_all(setting(full, num_blocks).engine(), [long])[0, 0]
    assert isinstance(failed.error, DoesNotFit) and "holds 100 " in str(failed.error)
    done = run_all(setting(windowed, num_blocks).engine(), [long])[0, 0]
    assert done.error is None
    assert done.output_ids.tolist() == expected_output(long, 0)


def test_where_every_layer_has_a_window_a_row_may_be_of_any_length() -> None:
    request = make_request(0, [3, 1, 4] * 400, 200)
    windows: Windows = (12, 12)
    for depth, repeat in ((1, 1), (3, 8)):
        num_blocks = blocks_held(windows, 4, 1400)
        assert num_blocks == 8
        engine = setting(windows, num_blocks, depth=depth, max_repeat=repeat).engine()
        done = run_all(engine, [request])[0, 0]
        assert done.error is None, "its own blocks were on their way back"
        assert done.output_ids.tolist() == expected_output(request, 0)


def test_a_row_holds_no_more_than_its_windows_and_what_is_being_computed() -> None:
    windows: Windows = (None, 12)
    engine = setting(windows, 400, max_repeat=1, caching=False).engine()
    engine.add(samples_of(make_request(0, list(range(200)), 100)))
    while not engine.idle:
        engine.step()
        if engine.scheduler.num_running:
            held = int((engine.scheduler.rows.block_ids(0)[1] >= 0).sum())
            assert held * 4 <= 12 + 32 + 3 * 4
    check_everything_returned(engine)


def test_a_row_that_comes_back_finds_what_its_windows_see() -> None:
    """As long as nobody took its blocks meanwhile. What was on its way is drawn again."""
    requests = [make_request(i, [i] * 50, 60) for i in range(2)]
    engine = setting((None, 12, 12), 200, max_repeat=4).engine()
    for order, request in enumerate(requests):
        engine.add(samples_of(request, order))
    for _ in range(20):
        engine.step()
    engine.scheduler._preemption.make_room()
    done = drain(engine)
    assert engine.scheduler.num_preemptions == 1
    num_tokens = sum(r.num_prompt + r.max_tokens for r in requests)
    assert engine.executor.computed_tokens < num_tokens + 2 * 4 + 4
    for request in requests:
        assert done[request.number, 0].output_ids.tolist() == expected_output(request, 0)


@pytest.mark.parametrize("windows", WINDOWED)
def test_aborting_at_any_moment_frees_every_block(windows: Windows) -> None:
    for after in range(1, 30, 7):
        engine = setting(windows, 120, depth=3).engine()
        samples = [samples_of(make_request(i, [2] * (20 + i), 30, n=3), i) for i in range(5)]
        for some in samples:
            engine.add(some)
        ended = [one for _ in range(after) if not engine.idle for one in engine.step().ended]
        engine.abort([one for some in samples[::2] for one in some])
        ended += drain(engine).values()
        done = {(one.request.number, one.sample): one.output_ids.tolist() for one in ended}
        for request in (some[0].request for some in samples[1::2]):
            for sample in range(3):
                assert done[request.number, sample] == expected_output(request, sample)
        check_everything_returned(engine)
