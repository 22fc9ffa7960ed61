"""Rows that the sampler draws for beside the CUDA runner's own: the same tokens as anywhere."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from quire.cache.pool import BlockPool
from quire.engine import Engine
from quire.errors import ProcessorFailed
from quire.executor.cpu.local import LocalExecutor
from quire.executor.cuda import sampler_draws
from quire.params.row_sampling import MOST_SPELLED
from quire.request import Ints, Request
from quire.sampling import holding
from quire.scheduler.limits import Limits
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.sequence import Sequence
from quire.step import StepPlan, StepResult
from tests.executor.cuda.plain import PlainExecutor, answers
from tests.executor.cuda.test_runner import PLAIN, SPEC, SPECIAL, WEIGHTS, requests
from tests.executor.harness import told as scores_of
from tests.specs import small_config


def quick(output_ids: list[int], logits: Tensor) -> Tensor:
    logits[len(output_ids)] += 9.0
    return logits


def slow(prompt_ids: list[int], output_ids: list[int], logits: Tensor) -> Tensor:
    time.sleep(0.005)
    logits[prompt_ids[0]] = -torch.inf
    return logits


def failing(output_ids: list[int], logits: Tensor) -> Tensor:
    if len(output_ids) > 1:
        raise RuntimeError("no more")
    return logits


def asked() -> list[Request]:
    processors: list[tuple[Any, ...]] = [(), (quick,), (slow,), (quick, slow), (failing,)]
    return [
        replace(one, processors=processors[number % len(processors)])
        for number, one in enumerate(requests(PLAIN + SPECIAL, count=15))
    ]


@cache
def wanted(make: Callable[[], list[Request]]) -> list[Sequence]:
    """What the plain runner gives."""
    plain = small_config(num_blocks=256)
    return answers(LocalExecutor(plain, SPEC, dict(WEIGHTS)), plain, make())


def told(sequences: list[Sequence]) -> list[tuple[list[int], str | None, str]]:
    return [(s.output_ids.tolist(), s.finish_reason, str(s.error)) for s in sequences]


@pytest.mark.parametrize(("depth", "max_repeat"), [(1, 1), (2, 8), (3, 32)])
def test_any_depth_and_repeat_gives_the_plain_runners_tokens(depth: int, max_repeat: int) -> None:
    config = small_config(depth=depth, max_repeat=max_repeat, num_blocks=128)
    found = answers(PlainExecutor(config, SPEC, WEIGHTS), config, asked())
    assert told(found) == told(wanted(asked))
    failed = [s for s in found if s.error is not None]
    assert failed and all(isinstance(s.error, ProcessorFailed) for s in failed)
    assert {failing} == {p for s in failed for p in s.request.processors}


def seldom(output_ids: list[int], logits: Tensor) -> Tensor:
    """Every fifth token is another one."""
    if len(output_ids) % 5 == 4:
        logits[int(logits.argmax())] = -torch.inf
    return logits


class Trying(PlainExecutor):
    """Counts what was tried, what of it stood, and in each plan the rows that were held."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.tried: list[tuple[int, int]] = []
        self.held: list[int] = []

    def submit(self, plan: StepPlan) -> Any:
        step, rows = super().submit(plan), plan.sampled_rows()
        return Noted(lambda: self._note(plan, rows, step.result()))

    def _note(self, plan: StepPlan, rows: Ints, result: StepResult) -> StepResult:
        for row, tried in zip(plan.tried.tolist(), plan.num_tried.tolist(), strict=True):
            self.tried.append((tried, int(result.counts[rows == row][0])))
        self.held.append(len(result.held))
        return result


@dataclass
class Noted:
    result: Callable[[], StepResult]


def test_what_is_tried_stands_as_far_as_the_sampler_draws_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # On a busy machine a row may be held while it tries, and tries less.
    monkeypatch.setattr(holding, "PATIENCE_BESIDE_OTHERS", 1e9)
    monkeypatch.setattr(holding, "MOST_PATIENCE", 60.0)
    endless = {"max_tokens": 24, "eos_ids": frozenset[int](), "stop_ids": frozenset[int]()}
    made = [replace(one, **endless) for one in requests([{"temperature": 0.0, "logprobs": 2}], 3)]
    made[1] = replace(made[1], processors=(seldom,))
    plain = small_config(num_blocks=256)
    expected = answers(LocalExecutor(plain, SPEC, dict(WEIGHTS)), plain, made)
    config = small_config(depth=2, max_repeat=8, num_blocks=128)
    executor = Trying(config, SPEC, WEIGHTS)
    found = answers(executor, config, made)
    assert told(found) == told(expected)
    for one, wanted in zip(found, expected, strict=True):
        assert scores_of(one.logprobs)[0] == scores_of(wanted.logprobs)[0]
    assert (8, 4) in executor.tried or (8, 5) in executor.tried
    assert len(executor.tried) < 12, "a third of its tokens, at most, came one by one"


def test_the_others_wait_some_time_for_a_rows_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Held behind its prompt, it would miss a long plan."""
    monkeypatch.setattr(holding, "PATIENCE_BESIDE_OTHERS", 0.0)
    monkeypatch.setattr(holding, "MOST_PATIENCE", 60.0)
    monkeypatch.setattr(sampler_draws, "FIRST_PATIENCE", 60.0)
    made = [replace(one, max_tokens=6) for one in requests([{"temperature": 0.0}], 3)]
    made[1] = replace(made[1], processors=(slow,))
    config = small_config(depth=1, max_repeat=1, num_blocks=128)
    executor = Trying(config, SPEC, WEIGHTS)
    answers(executor, config, made)
    assert executor.held[0] == 0 < max(executor.held)


def long_words() -> list[Request]:
    """A third draws by the sampler: a word is longer than the device compares."""
    made, too_long = requests(PLAIN + SPECIAL, count=12), list(range(MOST_SPELLED + 1))
    for one in made[::3]:
        words = [[a, b] for a in range(60) for b in range(0, 200, 9)]
        one.params._bad_words_token_ids = [*words, too_long]
    return made


def many() -> list[Request]:
    return [*asked(), *(replace(one, number=one.number + 50) for one in long_words())]


@pytest.mark.parametrize("seed", range(3))
def test_rows_that_are_aborted_before_they_drew_leave_nothing_behind(seed: int) -> None:
    """Their rows are taken by others at once, while what they were to draw is still to be drawn."""
    expected = {(s.request.number, s.sample): told([s]) for s in wanted(many)}
    config = small_config(depth=2, max_repeat=8, num_blocks=128, max_num_seqs=6)
    executor, rng = PlainExecutor(config, SPEC, WEIGHTS), random.Random(seed)
    pool = BlockPool(executor.start().num_blocks, block_size=config.block_size)
    engine = Engine(Scheduler(pool, Limits.in_engine(config)), executor, depth=2)
    waiting = {}
    for order, request in enumerate(many()):
        samples = [Sequence(request, i, order) for i in range(request.params.n)]
        waiting[order] = samples
        engine.add(samples)
    ended: list[Sequence] = []
    while not engine.idle:
        ended += engine.step().ended
        left = [o for o, samples in waiting.items() if not any(s.finish_reason for s in samples)]
        if left and rng.random() < 0.1:
            engine.abort(waiting.pop(rng.choice(left)))
    assert len(waiting) < len(many()) and len(ended) > 10
    for one in ended:
        assert told([one]) == expected[one.request.number, one.sample]
    assert pool.num_free == pool.num_blocks and not executor.runner._draws._pending


@pytest.mark.gpu
@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
def test_a_gpu_draws_the_cpu_engines_tokens(mode: str, eager: bool) -> None:
    from quire.executor.cuda.executor import CudaExecutor

    for made in (asked, long_words):
        plain = small_config(num_blocks=256, logprobs_mode=mode)
        expected = answers(LocalExecutor(plain, SPEC, dict(WEIGHTS)), plain, made())
        fields = {"device": "cuda", "block_size": 16, "depth": 2, "max_repeat": 8}
        config = small_config(**fields, enforce_eager=eager, num_blocks=128, logprobs_mode=mode)
        weights = {name: weight.cuda() for name, weight in WEIGHTS.items()}
        executor = CudaExecutor(config, SPEC, weights)
        try:
            found = answers(executor, config, made())
        finally:
            executor.close()
        assert told(found) == told(expected)
        for one, wanted in zip(found, expected, strict=True):
            mine, theirs = scores_of(one.logprobs), scores_of(wanted.logprobs)
            assert mine[0] == theirs[0]
            np.testing.assert_allclose(mine[1], theirs[1], atol=1e-3)
