"""What a plan says before the run is what the run does."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quire import LLM, SamplingParams
from tests.tiny_llm import tiny_llm


@pytest.fixture
def llm(tmp_path: Path) -> Iterator[LLM]:
    # A plan counts a token a step; how many steps guesses save nobody knows before.
    usual = {"speculative_config": {"num_speculative_tokens": 0}, "max_num_seqs": 16}
    with tiny_llm(tmp_path, kv_cache_memory_bytes=32 << 20, **usual) as made:
        yield made


def fewshot(rng: random.Random, count: int) -> list[dict[str, Any]]:
    shared = [[rng.randrange(9000) for _ in range(n)] for n in (100, 37)]
    own = [[rng.randrange(9000) for _ in range(rng.randint(1, 30))] for _ in range(count)]
    return [{"prompt_token_ids": rng.choice([*shared, []]) + ids} for ids in own]


def test_counts_agree_with_the_run_exactly(llm: LLM) -> None:
    rng = random.Random(4)
    prompts = fewshot(rng, 60)
    prompts += [prompts[i] for i in (3, 17, 3)]
    params = [
        SamplingParams(temperature=0, max_tokens=rng.randint(1, 20), ignore_eos=True)
        for _ in range(60)
    ]
    params += [params[i] for i in (3, 17, 3)]
    plan = llm.plan(prompts, params, probe=0)
    shown = plan.explain()
    assert "63; 60 to run" in shown and f"{plan.saved_share:.1%}" in shown
    engine = llm._session.engine
    steps = engine.num_steps
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert len(plan.duplicates) == 3
    assert plan.cached_tokens.tolist() == [o.num_cached_tokens for o in outputs]
    assert plan.num_prompt_tokens == sum(len(o.prompt_token_ids or ()) for o in outputs)
    assert plan.expected_output_tokens == sum(len(o.outputs[0].token_ids) for o in outputs)
    ran = engine.num_steps - steps
    assert abs(plan.estimate.steps - ran) <= max(1, 0.02 * ran)
    assert abs(plan.estimate.peak_blocks - engine.scheduler.pool.peak_used) <= 2


def test_a_plan_measures_first_when_nothing_ran_yet(llm: LLM) -> None:
    prompts = fewshot(random.Random(1), 30)
    first = llm.plan(prompts, SamplingParams(temperature=0, max_tokens=8))
    assert "measured steps" in first.explain()
    assert llm._session.engine.idle


def test_planning_alone_runs_nothing(llm: LLM) -> None:
    llm.plan(fewshot(random.Random(1), 10), SamplingParams(temperature=0), probe=0)
    assert llm._session.engine.num_steps == 0
