"""Tenants have equal turns among those that wait, whatever each of them asks for."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import count, pairwise

import pytest

from quire.request import Request
from quire.scheduler.sequence import Sequence
from quire.scheduler.waiting import Waiting
from tests.fakes import expected_output
from tests.scheduler.runs import (
    SOME_WINDOWS,
    check_run,
    make_request,
    random_requests,
    random_setting,
    samples_of,
)
from tests.scheduler.test_scheduler import setting


class Queue:
    """Sequences that wait, and whose are admitted."""

    def __init__(self) -> None:
        self.waiting, self._num_made = Waiting(), 0

    def add(self, tenants: str, queued: float = 0.0, **more: object) -> None:
        """One sequence for each letter."""
        for tenant in tenants:
            self._num_made += 1
            request = make_request(self._num_made, [1], 1, tenant=tenant, **more)
            [sequence] = samples_of(request, order=self._num_made)
            sequence.timings.queued = queued
            self.waiting.add(sequence)

    def admitted(self, count: int = 1000, *, now: float = 0.0, max_wait: float = math.inf) -> str:
        tenants = ""
        while len(tenants) < count and (one := self.waiting.next(now, max_wait)) is not None:
            self.waiting.admit(one)
            tenants += one.request.tenant
        return tenants


def test_who_comes_last_has_the_next_turn_and_not_one_behind_all_others() -> None:
    queue = Queue()
    queue.add("a" * 8)
    assert queue.admitted(2) == "aa"
    queue.add("bbc")
    assert queue.admitted() == "bcabaaaaa"


def test_turns_that_went_by_unused_are_not_had_later() -> None:
    queue = Queue()
    queue.add("ab" + "a" * 50)
    assert queue.admitted(40) == "ab" + "a" * 38
    queue.add("bbbb")
    assert queue.admitted(8) == "babababa"


def test_one_request_at_a_time_takes_no_more_than_every_second_turn() -> None:
    queue, came = Queue(), ""
    queue.add("a" * 20)
    for _ in range(20):
        if not came.endswith("b"):
            queue.add("b")
        came += queue.admitted(1)
    assert came.count("a") == 10


@pytest.mark.parametrize("background", [False, True])
def test_what_is_given_up_was_no_turn(background: bool) -> None:
    queue = Queue()
    queue.add("a" * 9 + "b" * 9, background=background)
    for sequence in [s for s in queue.waiting if s.request.tenant == "a"][:6]:
        queue.waiting.remove(sequence)
    assert queue.admitted(6) == "ababab"


def test_priorities_count_before_turns() -> None:
    queue = Queue()
    queue.add("aaa", priority=1)
    queue.add("bbb", priority=2)
    queue.add("bb", priority=1)
    assert queue.admitted() == "ababa" + "bbb"


def test_those_that_waited_too_long_still_take_turns_with_others() -> None:
    """A tenant with hours of work has nothing but such as waited too long."""
    queue = Queue()
    queue.add("aaaa", queued=10.0, priority=5)
    queue.add("bbb", queued=100.0)
    assert queue.admitted(now=101.0, max_wait=60.0) == "bababaa"


def test_without_tenants_the_order_is_the_plans() -> None:
    queue = Queue()
    for number in (3, 1, 2):
        queue.waiting.add(samples_of(make_request(number, [1], 1), order=number)[0])
    came = []
    while (one := queue.waiting.next(0.0, math.inf)) is not None:
        queue.waiting.admit(one)
        came.append(one.request.number)
    assert came == [1, 2, 3]


class Tenants:
    """An engine of eight rows whose clock goes a tenth of a second with each plan, and with it the
    long answers of one tenant, as many again behind them."""

    def __init__(self, tenants: str = "a" * 16, **more: object) -> None:
        self.now = 100.0
        self.engine = setting(max_num_seqs=8, num_blocks=2000, **more).engine(
            clock=lambda: self.now
        )
        self.requests: list[Request] = []
        self.ended: list[Sequence] = []
        self.add(tenants)
        self.run(0.3)

    def add(self, tenants: str, tokens: int = 150) -> None:
        for tenant in tenants:
            number = len(self.requests)
            request = make_request(number, [number, 1, 2], tokens, tenant=tenant)
            self.requests.append(request)
            self.engine.add(samples_of(request, number))

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until and not self.engine.idle:
            self.now += 0.1
            self.ended += self.engine.step().ended + self.engine.step().ended

    @property
    def rows(self) -> dict[str, int]:
        rows = self.engine.scheduler.rows
        return dict(Counter(rows.sequence(row).request.tenant for row in rows.running))

    def check_answers(self) -> None:
        self.run(1e9)
        assert len(self.ended) == len(self.requests)
        for one in self.ended:
            assert one.output_ids.tolist() == expected_output(one.request, one.sample)


def test_long_answers_of_one_keep_no_other_waiting_for_their_end() -> None:
    tenants = Tenants()
    tenants.add("b", tokens=4)
    tenants.run(0.9)
    assert tenants.rows == {"a": 8}, "a row may end by itself"
    tenants.run(1.2)
    assert [one.request.tenant for one in tenants.ended] == ["b"]
    assert tenants.rows == {"a": 8} and tenants.engine.scheduler.num_preemptions == 1
    tenants.check_answers()


def test_one_row_a_second_changes_hands_until_all_have_as_many() -> None:
    tenants = Tenants()
    tenants.add("b" * 16)
    came, changed = tenants.now, [0.0]
    while tenants.now < came + 10:
        before = tenants.rows.get("b", 0)
        tenants.run(0.1)
        if tenants.rows.get("b", 0) != before:
            changed.append(tenants.now - came)
    assert tenants.rows == {"a": 4, "b": 4} and len(changed) == 5
    assert all(0.99 < later - earlier < 1.3 for earlier, later in pairwise(changed))
    tenants.add("c")
    tenants.run(2.2)
    assert tenants.rows["c"] == 1
    tenants.check_answers()


@pytest.mark.parametrize("waiting", ["", "aaaa", "abab"])
def test_nobody_gives_up_a_row_to_who_has_as_many(waiting: str) -> None:
    tenants = Tenants("abababab" if "b" in waiting else "a" * 8)
    tenants.add(waiting)
    tenants.check_answers()
    assert tenants.engine.scheduler.num_preemptions == 0


def test_rows_change_hands_whatever_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples, prompts in parts, rows with grammars and guesses, in pools that are too small."""
    yielded: list[str] = []
    put_back = Waiting.put_back

    def counted(waiting: Waiting, sequence: Sequence) -> None:
        yielded.append(sequence.request.tenant)
        put_back(waiting, sequence)

    monkeypatch.setattr(Waiting, "put_back", counted)
    for seed in range(12):
        rng, ticks = random.Random(seed), count(step=0.3)
        requests = [
            replace(request, number=number, priority=0, tenant=rng.choice("aaab"))
            for number, request in enumerate([*random_requests(rng), *random_requests(rng)])
        ]
        longest = max(request.num_prompt + request.max_tokens for request in requests)
        some = random_setting(rng, longest, SOME_WINDOWS)
        check_run(some.engine(clock=partial(next, ticks)), requests, seed)
    assert len(yielded) > 10
