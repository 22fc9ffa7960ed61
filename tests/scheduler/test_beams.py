"""Searches in rows: they share blocks, fork, die, leave and come back, and find the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from quire.engine import Engine
from quire.errors import DoesNotFit, GrammarFailed, InvalidLogits
from quire.scheduler.beam_rule import SearchRules
from quire.scheduler.sequence import Sequence
from quire.step import StepPlan
from tests.fake_beams import FussyGuide
from tests.fakes import Done, FakeExecutor, expected_output
from tests.scheduler.beam_runs import (
    check_everything_returned,
    check_group,
    check_random_beams,
    lead_of,
)
from tests.scheduler.runs import Setting, drain, make_request, samples_of

SETTING = Setting(
    num_blocks=64,
    block_size=4,
    max_num_seqs=8,
    max_num_batched_tokens=32,
    max_repeat=4,
    depth=1,
    caching=True,
)


def test_random_runs_find_what_each_search_finds_alone() -> None:
    num_preemptions = sum(check_random_beams(seed) for seed in range(17))
    assert num_preemptions > 10, "these settings are meant to run out of blocks"


@pytest.mark.long
@pytest.mark.parametrize("block", range(50))
def test_five_thousand_random_runs(block: int) -> None:
    for seed in range(50_000 + block * 100, 50_000 + block * 100 + 100):
        check_random_beams(seed)


def run_searches(engine: Engine, leads: list[Sequence]) -> list[Sequence]:
    for lead in leads:
        engine.add([lead])
    done = drain(engine)
    check_everything_returned(engine)
    assert len(done) == len(leads)
    return leads


def test_beams_share_the_prompt_and_copy_only_the_block_they_write() -> None:
    engine = SETTING.engine()
    request = make_request(0, list(range(22)), 2)
    rules = SearchRules(4, 2)
    [lead] = run_searches(engine, [lead_of(request, rules)])
    check_group(lead, request, rules)
    # Five whole blocks and one partly filled; three beams copy that one, the last keeps it.
    assert engine.scheduler.pool.peak_used == 6 + 3
    assert isinstance(engine.executor, FakeExecutor)
    assert engine.executor.computed_tokens == 22 + 4


def test_only_the_best_that_were_asked_for_come_out() -> None:
    engine = SETTING.engine()
    request = make_request(0, [1, 2, 3], 5)
    [lead] = run_searches(engine, [lead_of(request, SearchRules(4, 5), num_best=2)])
    assert lead.group is not None
    assert [len(a.output_ids) for a in lead.group.answers] == [5, 5]
    assert lead.output_ids.tolist() == lead.group.answers[0].output_ids.tolist()


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_groups_are_preempted_as_one_and_come_back_as_they_were(caching: bool, depth: int) -> None:
    setting = replace(
        SETTING, num_blocks=19, max_num_seqs=12, caching=caching, depth=depth, optimism=0.05
    )
    engine = setting.engine()
    rules = SearchRules(3, 16, frozenset(range(0, 900, 90)))
    requests = [
        make_request(i, [i, *range(9)], 16, stop_ids=rules.end_ids, guided=i == 1) for i in range(3)
    ]
    leads = run_searches(engine, [lead_of(r, rules, order=r.number) for r in requests])
    assert engine.scheduler.num_preemptions > 0
    for lead, request in zip(leads, requests, strict=True):
        check_group(lead, request, rules)


def blocks_held(engine: Engine, lead: Sequence) -> int:
    rows = engine.scheduler.rows
    assert lead.group is not None
    return len(np.unique(np.concatenate([rows.block_ids(row) for row in lead.group.rows])))


def test_a_group_that_comes_back_needs_no_more_blocks_than_before() -> None:
    """Without the cache, too: its beams find the blocks they have in common in each other."""
    engine = replace(SETTING, caching=False, depth=1).engine()
    scheduler = engine.scheduler
    request, rules = make_request(0, list(range(20)), 12), SearchRules(4, 12)
    other = make_request(1, [7], 40)
    engine.add(samples_of(other, order=0))
    lead = lead_of(request, rules, order=1)
    engine.add([lead])
    # Every beam has a block of its own to write into while a plan is on its way.
    while scheduler.rows.known.max() < 28 or not engine._in_flight:
        engine.step()
    held = blocks_held(engine, lead)
    scheduler._preemption.make_room()
    assert lead.waiting and lead.num_preemptions == 1
    assert lead.group is not None
    while lead.group.num_begun < 4:
        engine.step()
    assert blocks_held(engine, lead) == held
    drain(engine)
    check_group(lead, request, rules)


@pytest.mark.parametrize("num_rows", [8, 3])
def test_a_pool_too_small_for_a_search_fails_it_alone(num_rows: int) -> None:
    engine = replace(SETTING, num_blocks=16, max_num_seqs=num_rows).engine()
    large = lead_of(make_request(0, list(range(10)), 40), SearchRules(8, 40), order=0)
    small = make_request(1, [1, 2, 3], 8)
    engine.add([large])
    engine.add(samples_of(small, order=1))
    done = drain(engine)
    assert isinstance(large.error, DoesNotFit) and "8 beams" in str(large.error)
    assert done[(1, 0)].output_ids.tolist() == expected_output(small, 0)
    check_everything_returned(engine)


@pytest.mark.parametrize("num_rows", [4, 5])
def test_rows_that_beams_take_turns_in_are_grouped_by_what_is_in_them(num_rows: int) -> None:
    """Three turns of which the first two have the same rows, over blocks of one token: what the
    beams of the first turn have in common, those of the second have not."""
    engine = replace(SETTING, num_blocks=400, block_size=1, max_num_seqs=num_rows).engine()
    request, rules = make_request(0, list(range(9)), 20), SearchRules(2 * num_rows + 1, 20)
    [lead] = run_searches(engine, [lead_of(request, rules)])
    check_group(lead, request, rules)


@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize("width", [2, 4, 8])
def test_beams_take_turns_in_fewer_rows_and_find_the_same(width: int, guided: bool) -> None:
    stops = frozenset(range(0, 900, 30))
    rules = SearchRules(width, 14, stops)
    for num_rows in range(1, width):
        for depth in (1, 2):
            engine = replace(SETTING, max_num_seqs=num_rows, depth=depth).engine()
            request = make_request(0, list(range(22)), 14, stop_ids=stops, guided=guided)
            [lead] = run_searches(engine, [lead_of(request, rules)])
            check_group(lead, request, rules)


def test_turns_compute_no_token_and_hold_no_block_more_than_a_row_for_each_beam() -> None:
    request, rules = make_request(0, list(range(22)), 12), SearchRules(6, 12)
    peaks, computed = [], []
    for num_rows in (6, 5, 2, 1):
        engine = replace(SETTING, max_num_seqs=num_rows).engine()
        run_searches(engine, [lead_of(request, rules)])
        assert isinstance(engine.executor, FakeExecutor)
        peaks.append(engine.scheduler.pool.peak_used)
        computed.append(engine.executor.computed_tokens)
    assert len(set(computed)) == 1 and max(peaks) == peaks[0]


def test_other_rows_wait_for_a_search_that_takes_them_all() -> None:
    engine = replace(SETTING, max_num_seqs=3).engine()
    before, after = make_request(0, [1, 2], 9), make_request(2, [3, 4], 5)
    request, rules = make_request(1, list(range(9)), 8), SearchRules(7, 8)
    lead = lead_of(request, rules, order=1)
    engine.add(samples_of(before, order=0))
    engine.add([lead])
    engine.add(samples_of(after, order=2))
    done = drain(engine)
    check_group(lead, request, rules)
    for other in (before, after):
        assert done[(other.number, 0)].output_ids.tolist() == expected_output(other, 0)
    check_everything_returned(engine)


def test_a_wide_search_waits_until_it_has_a_row_for_every_beam() -> None:
    engine = SETTING.engine()
    others = [make_request(i, [i, 1, 2], 6) for i in range(3)]
    for request in others:
        engine.add(samples_of(request, order=request.number))
    request, rules = make_request(9, [5, 6, 7], 6), SearchRules(6, 6)
    lead = lead_of(request, rules, order=9)
    engine.add([lead])
    engine.step()
    assert lead.waiting and engine.scheduler.num_running == 3
    drain(engine)
    check_group(lead, request, rules)
    check_everything_returned(engine)


@pytest.mark.parametrize("num_rows", [8, 3, 1])
@pytest.mark.parametrize("num_steps", [1, 2, 5, 9, 14])
def test_aborting_a_search_returns_everything(num_steps: int, num_rows: int) -> None:
    engine = replace(SETTING, depth=2, max_num_seqs=num_rows).engine()
    lead = lead_of(make_request(0, list(range(40)), 20), SearchRules(4, 20))
    engine.add([lead])
    for _ in range(num_steps):
        engine.step()
    engine.abort([lead])
    assert lead.finish_reason == "abort"
    assert drain(engine) == {}
    check_everything_returned(engine)


class FailingExecutor(FakeExecutor):
    """Fails the second row of each plan that has a search in it, from the third such plan on."""

    num_seen = 0

    def submit(self, plan: StepPlan) -> Done:
        result = super().submit(plan).value
        self.num_seen += len(plan.searched) > 1
        if self.num_seen >= 3 and len(plan.searched) > 1:
            lines = np.flatnonzero(np.isin(plan.sampled_rows(), plan.searched))
            return Done(replace(result, failed=tuple(lines[1:3].tolist())))
        return Done(result)


@pytest.mark.parametrize("num_rows", [8, 2])
def test_bad_logits_of_a_beam_end_its_search_and_nobody_else(num_rows: int) -> None:
    engine = replace(SETTING, max_num_seqs=num_rows).engine()
    engine.executor = FailingExecutor(64, 4)
    lead = lead_of(make_request(0, [1, 2, 3], 10), SearchRules(3, 10), order=0)
    free = make_request(1, [1, 2, 3], 10)
    engine.add([lead])
    engine.add(samples_of(free, order=1))
    done = drain(engine)
    assert isinstance(lead.error, InvalidLogits) and lead.finish_reason == "error"
    assert done[(1, 0)].output_ids.tolist() == expected_output(free, 0)
    check_everything_returned(engine)


class FailingGuide(FussyGuide):
    """After three tokens it comes to a limit, or meets a fault where it is asked `question`."""

    error: GrammarFailed | None = None  # type: ignore[assignment]

    def __init__(self, question: str, accepted: tuple[int, ...] = ()) -> None:
        super().__init__(accepted)
        self.question = question

    def asked(self, question: str) -> None:
        if self.question == question and len(self.accepted) == 3:
            raise LookupError("made up")

    def accept(self, token_id: int) -> bool:
        self.asked("accept")
        if self.question == "limit" and len(self.accepted) == 3:
            self.error = GrammarFailed("too much work")
            return False
        return super().accept(token_id)

    @property
    def is_complete(self) -> bool:  # type: ignore[override]
        self.asked("is_complete")
        return True

    @property
    def is_stopped(self) -> bool:  # type: ignore[override]
        self.asked("is_stopped")
        return False

    def fork(self) -> FailingGuide:
        self.asked("fork")
        return FailingGuide(self.question, self.accepted)


# The question at which it fails, how long its search may be, and how many ids end it.
FAILURES = [
    *(("limit", 10, 0), ("accept", 10, 0), ("fork", 10, 1), ("is_complete", 10, 40)),
    *(("is_stopped", 10, 0), ("fork", 4, 1), ("accept", 4, 1)),
]


@pytest.mark.parametrize("num_rows", [8, 2, 1])
@pytest.mark.parametrize(("question", "most", "num_ends"), FAILURES)
def test_a_grammar_that_fails_ends_its_search_alone(
    question: str, most: int, num_ends: int, num_rows: int
) -> None:
    engine = replace(SETTING, max_num_seqs=num_rows).engine()
    rules = SearchRules(3, most, frozenset(range(0, 25 * num_ends, 25)))
    lead = lead_of(make_request(0, [1, 2, 3], most, guided=True), rules)
    lead.guide = FailingGuide(question)
    other, usual = make_request(1, [1, 2, 3], 10), SearchRules(3, 10)
    run_searches(engine, [lead, unharmed := lead_of(other, usual, order=1)])
    fault = "this row failed while its text was followed: LookupError"
    assert str(lead.error) == ("too much work" if question == "limit" else fault)
    assert lead.finish_reason == "error"
    check_group(unharmed, other, usual)


def test_a_search_counts_its_times_and_its_cached_tokens() -> None:
    engine = SETTING.engine()
    request, rules = make_request(0, list(range(20)), 6), SearchRules(2, 6)
    run_searches(engine, [lead_of(request, rules)])
    again = replace(request, number=1)
    [lead] = run_searches(engine, [lead_of(again, rules)])
    times = lead.timings
    assert 0 < times.queued <= times.scheduled <= times.first_token <= times.last_token
    assert lead.num_cached == 16
    assert lead.group is not None and lead.group.answers[0].timings is times
