"""Requests, planners and a real scheduler run, for the tests of the plan."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any

import numpy as np

from quire.cache.groups import ONE_GROUP, Windows
from quire.cache.pool import BlockPool
from quire.config import EngineConfig
from quire.plan.lengths import OutputLengths
from quire.plan.planner import Planner
from quire.plan.times import StepTimes
from quire.request import Request
from quire.sampling_params import SamplingParams
from quire.scheduler.limits import Limits
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.sequence import Sequence
from quire.step import StepPlan, StepResult
from tests.specs import small_config, small_spec

SPEC = small_spec(
    vocab_size=1000, hidden_size=64, intermediate_size=128, head_dim=16, max_model_len=4096
)


def request(prompt: Many[int], number: int = 0, **given: Any) -> Request:
    """A request that nothing but max_tokens ends, unless eos_ids are given."""
    outer = {
        k: given.pop(k) for k in ("priority", "cache_salt", "eos_ids", "hidden_from") if k in given
    }
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 4, "ignore_eos": True, **given})
    assert params.max_tokens is not None
    return Request(
        number=number,
        prompt_ids=np.array(prompt, np.int32),
        params=params,
        max_tokens=params.max_tokens,
        noise_key=params.seed if params.seed is not None else 1000 + number,
        **outer,
    )


def config(**given: Any) -> EngineConfig:
    usual = {"max_model_len": 4096, "max_num_seqs": 8, "max_num_batched_tokens": 64}
    return small_config(**{**usual, "num_blocks": None, "max_wait": 1e9, **given})


def planner(
    *,
    num_blocks: int = 1000,
    lengths: OutputLengths | None = None,
    windows: Windows = ONE_GROUP,
    **given: Any,
) -> Planner:
    return Planner(
        config(**given),
        num_blocks=num_blocks,
        times=StepTimes(SPEC),
        lengths=lengths or OutputLengths(),
        windows=windows,
    )


@dataclass
class Seen:
    """What a real run did."""

    steps: int
    tokens: int
    sampled: int
    context: int
    peak_blocks: int
    preemptions: int
    cached: dict[int, int]


def run_scheduler(
    requests: Many[Request],
    order: Many[int],
    settings: EngineConfig,
    num_blocks: int,
    windows: Windows = ONE_GROUP,
) -> Seen:
    """Run the requests in this order through the real scheduler; every token drawn is 7."""
    pool = BlockPool(
        num_blocks,
        block_size=settings.block_size,
        caching=settings.enable_prefix_caching,
        windows=windows,
    )
    limits = Limits(
        settings.max_num_seqs,
        settings.max_num_batched_tokens,
        max_repeat=settings.max_repeat,
        max_wait=1e9,
    )
    scheduler = Scheduler(pool, limits)
    firsts = {}
    for place, i in enumerate(order):
        samples = [
            Sequence(requests[i], sample=k, order=place) for k in range(requests[i].params.n)
        ]
        firsts[i] = samples[0]
        scheduler.add(samples)
    seen = Seen(0, 0, 0, 0, 0, 0, {})
    flights: list[StepResult] = []
    while scheduler.num_unfinished:
        plan = scheduler.schedule() if len(flights) < settings.depth else None
        if plan is not None:
            flights.append(_answer(plan, seen))
        else:
            scheduler.commit(flights.pop(0))
    seen.peak_blocks, seen.preemptions = pool.peak_used, scheduler.num_preemptions
    seen.cached = {i: s.num_cached for i, s in firsts.items()}
    return seen


def _answer(plan: StepPlan, seen: Seen) -> StepResult:
    rows = plan.sampled_rows()
    seen.steps += plan.repeat
    seen.tokens += plan.num_tokens
    seen.sampled += len(rows) - len(plan.decode) + len(plan.decode) * plan.repeat
    for s in plan.prefill:
        end = s.start + len(s.token_ids)
        seen.context += (end * (end + 1) - s.start * (s.start + 1)) // 2
    for k in range(plan.repeat):
        seen.context += int((plan.decode.positions + 1 + k).sum())
    shape = (len(rows), plan.repeat)
    return StepResult(np.full(shape, 7, np.int32), np.full(len(rows), plan.repeat, np.int32))
