"""Rows whose logits are held draw later, and say what they would have said at once."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from quire.engine import Engine
from quire.request import Request
from quire.step import StepPlan, StepResult
from tests.fakes import FakeExecutor, FakeRow, expected_output
from tests.scheduler.runs import is_guided, random_requests, random_setting, run_all


class LaterLogits:
    """Done after it was asked a few times."""

    def __init__(self, patience: int) -> None:
        self.patience = patience

    def done(self) -> bool:
        self.patience -= 1
        return self.patience < 0

    def wait(self, seconds: float) -> None:
        self.patience -= 1


class HoldingExecutor(FakeExecutor):
    """Keeps what rows with processors drew to itself, now and then, until they are released."""

    def __init__(self, like: FakeExecutor, rng: random.Random) -> None:
        super().__init__(like.num_blocks, like.block_size, max_tokens=like.max_tokens)
        self.rng = rng
        self.kept: dict[int, int] = {}
        self.num_held = self.num_cut = 0

    def _try(self, row: FakeRow, steps: int) -> list[int]:
        """Some of it stands; behind that other tokens were fed."""
        made, _ = self._decode(row, self.rng.randint(1, steps))
        last, length = row.last, row.length
        if not row.frozen:
            self.num_cut += len(made) < steps
            for _ in range(len(made), steps):
                self._feed(row, row.length - 1, row.last ^ 1)
                row.length += 1
        row.last, row.length = last, length
        return made

    def _run(self, plan: StepPlan) -> StepResult:
        result = super()._run(plan)
        rows = plan.sampled_rows().tolist()
        released = [self.kept.pop(row) for row in plan.released.tolist()]
        late = np.full((len(released), result.tokens.shape[1]), -1, np.int32)
        late[:, 0] = released
        tokens = np.concatenate([result.tokens, late])
        counts = np.concatenate([result.counts, np.ones(len(released), np.int32)])
        held: dict[int, int] = {}
        for i in range(len(result.tokens)):
            if self.rows[rows[i]].start.has_processors and counts[i] and self.rng.random() < 0.5:
                assert rows[i] not in self.kept, "a row that is held was computed"
                # Of what a row tried the last is held, and what came before it stands.
                counts[i] -= 1
                self.kept[rows[i]] = int(tokens[i, counts[i]])
                tokens[i, counts[i]] = -1
                held[i] = self.handles.hold(LaterLogits(self.rng.choice([0, 1, 5, 30])))
        self.num_held += len(held)
        return StepResult(tokens, counts.astype(np.int32), held=held)

    def submit(self, plan: StepPlan) -> object:  # type: ignore[override]
        for row in plan.ends.tolist():
            self.kept.pop(row, None)
        return super().submit(plan)


def some_processed(rng: random.Random, request: Request) -> Request:
    return replace(request, processors=(print,)) if rng.random() < 0.5 else request


def check_random_run(seed: int) -> tuple[int, int, int]:
    """One random run; how often a row was held, how often what it tried was wrong, and how often
    one was preempted."""
    rng = random.Random(seed)
    requests = [some_processed(rng, request) for request in random_requests(rng)]
    longest = max(r.num_prompt + r.max_tokens for r in requests)
    plain: Engine = random_setting(rng, longest).engine()
    executor = HoldingExecutor(plain.executor, rng)  # type: ignore[arg-type]
    engine = Engine(plain.scheduler, executor, depth=plain.depth)  # type: ignore[arg-type]
    done = run_all(engine, requests)
    for request in requests:
        for sample in range(request.params.n):
            sequence = done.pop((request.number, sample))
            expected = expected_output(request, sample, guided=is_guided(request))
            assert sequence.output_ids.tolist() == expected, seed
    assert not done and not engine.scheduler.num_held
    pool = engine.scheduler.pool
    assert pool.num_free == pool.num_blocks and not pool.holders.any()
    return executor.num_held, executor.num_cut, engine.scheduler.num_preemptions


def test_random_runs_with_held_rows_give_what_each_request_gives_alone(long_mode: bool) -> None:
    counts = [check_random_run(seed) for seed in range(300 if long_mode else 30)]
    num_held, num_cut, num_preemptions = (sum(column) for column in zip(*counts, strict=True))
    assert num_held > 200 and num_cut > 40
    assert num_preemptions > 5, "held rows are meant to be preempted, too"
