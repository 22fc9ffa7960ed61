"""Scheduler and engine under any order of adding, stepping and aborting."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from quire.engine import Engine
from quire.scheduler.beam_rule import SearchRules
from quire.scheduler.sequence import Sequence
from tests.fakes import expected_output
from tests.scheduler.beam_runs import check_group, lead_of
from tests.scheduler.runs import Setting, make_request, samples_of

MOST_ROWS, BUDGET, NUM_BLOCKS, BLOCK = 4, 12, 14, 4


class SchedulerMachine(RuleBasedStateMachine):
    engine: Engine

    def __init__(self) -> None:
        super().__init__()
        self.open: dict[int, list[Sequence]] = {}  # added, not all samples ended
        self.ended: dict[tuple[int, int], Sequence] = {}
        self.searches: dict[int, SearchRules] = {}
        self.number = 0
        self.idle_steps = 0

    @initialize(
        depth=st.integers(1, 3),
        repeat=st.sampled_from([1, 4]),
        caching=st.booleans(),
        optimism=st.sampled_from([0.05, 1.0]),
    )
    def start(self, depth: int, repeat: int, caching: bool, optimism: float) -> None:
        self.engine = Setting(
            num_blocks=NUM_BLOCKS,
            block_size=BLOCK,
            max_num_seqs=MOST_ROWS,
            max_num_batched_tokens=BUDGET,
            max_repeat=repeat,
            depth=depth,
            caching=caching,
            optimism=optimism,
        ).engine()

    @rule(
        prompt=st.lists(st.integers(0, 2), min_size=1, max_size=20),
        max_tokens=st.integers(1, 30),
        n=st.sampled_from([1, 1, 3]),
        priority=st.integers(0, 2),
        stops=st.lists(st.integers(0, 996), max_size=30),
    )
    def add(
        self, prompt: list[int], max_tokens: int, n: int, priority: int, stops: list[int]
    ) -> None:
        request = make_request(
            self.number, prompt, max_tokens, n=n, priority=priority, stop_ids=stops
        )
        self.open[self.number] = samples_of(request, order=self.number)
        self.engine.add(self.open[self.number])
        self.number += 1

    @rule(
        prompt=st.lists(st.integers(0, 2), min_size=1, max_size=10),
        max_tokens=st.integers(1, 6),
        width=st.integers(1, 3),
        priority=st.integers(0, 2),
        stops=st.lists(st.integers(0, 996), max_size=30),
    )
    def add_search(
        self, prompt: list[int], max_tokens: int, width: int, priority: int, stops: list[int]
    ) -> None:
        request = make_request(self.number, prompt, max_tokens, priority=priority, stop_ids=stops)
        self.searches[self.number] = SearchRules(width, max_tokens, request.stop_ids)
        lead = lead_of(request, self.searches[self.number], order=self.number)
        self.open[self.number] = [lead]
        self.engine.add([lead])
        self.number += 1

    @precondition(lambda self: not self.engine.idle)
    @rule(count=st.integers(1, 10))
    def step(self, count: int) -> None:
        for _ in range(count):
            if not self.engine.idle:
                self.take(self.engine.step().ended)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.open)))
        self.engine.abort(self.open.pop(number))

    def take(self, ended: list[Sequence]) -> None:
        for sequence in ended:
            request, sample = sequence.request, sequence.sample
            assert request.number in self.open, "an aborted request came out"
            assert (request.number, sample) not in self.ended, "it came out twice"
            self.ended[(request.number, sample)] = sequence
            assert sequence.error is None
            if request.number in self.searches:
                check_group(sequence, request, self.searches[request.number])
            else:
                assert sequence.output_ids.tolist() == expected_output(request, sample)
            if all((request.number, s) in self.ended for s in range(request.params.n)):
                del self.open[request.number]

    @invariant()
    def rows_and_blocks_stay_within_their_bounds(self) -> None:
        if not hasattr(self, "engine"):
            return
        scheduler = self.engine.scheduler
        assert scheduler.num_running <= MOST_ROWS
        assert scheduler.rows.num_free + scheduler.num_running == MOST_ROWS
        held = sum(int(scheduler.rows.num_blocks[row]) for row in scheduler.rows.running)
        assert int(scheduler.pool.holders.sum()) == held

    def teardown(self) -> None:
        steps = 0
        while hasattr(self, "engine") and not self.engine.idle:
            self.take(self.engine.step().ended)
            steps += 1
            assert steps < 20_000, "somebody never gets to the end"
        assert not self.open, "a request was lost"
        if hasattr(self, "engine"):
            assert self.engine.scheduler.pool.num_free == NUM_BLOCKS


TestScheduler = SchedulerMachine.TestCase
# Few examples where they are always the same; with --long, which looks for new ones, many.
NUM_EXAMPLES = 20 if settings.default.derandomize else 100
TestScheduler.settings = settings(max_examples=NUM_EXAMPLES, stateful_step_count=30, deadline=None)
