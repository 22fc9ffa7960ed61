"""A recorded run, played again on another executor, gives the same tokens."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import force_setattr

from quire import BeamSearchParams, SamplingParams, StructuredOutputsParams
from quire.errors import CorruptJob
from quire.step import StepResult
from tests.scheduler.runs import Setting, random_requests, run_all
from tests.testing.recorder import RecordingExecutor, recorded_steps, replay
from tests.tiny_llm import tiny_llm

OPTIONS: dict[str, Any] = {"max_num_seqs": 48, "kv_cache_memory_bytes": 120 << 10}


def random_params(rng: random.Random) -> SamplingParams:
    temperature = rng.choice([0.0, 0.8, 1.3])
    return SamplingParams(
        temperature=temperature,
        top_k=rng.choice([0, 20]),
        top_p=rng.choice([1.0, 0.8]),
        repetition_penalty=rng.choice([1.0, 1.0, 1.3]),
        frequency_penalty=rng.choice([0.0, 0.0, 0.4]),
        logprobs=rng.choice([None, None, 2]),
        logit_bias=rng.choice([None, None, {5: 3.0}]),
        max_tokens=rng.randint(1, 12),
        n=rng.choice([1, 1, 2]) if temperature else 1,
        structured_outputs=rng.choice(
            [None, None, None, StructuredOutputsParams(regex="[a-c]{2,5}")]
        ),
    )


def check_equal(recorded: StepResult, now: StepResult) -> None:
    assert np.array_equal(recorded.tokens, now.tokens)
    assert np.array_equal(recorded.counts, now.counts)
    assert recorded.failed == now.failed
    for one, other in zip(recorded.logprobs, now.logprobs, strict=True):
        assert np.array_equal(one.scores.logprobs, other.scores.logprobs)


def test_rows_of_every_kind_replay_to_the_same_tokens(tmp_path: Path, long_mode: bool) -> None:
    rng, file = random.Random(4), tmp_path / "run.steps"
    count = 2000 if long_mode else 50
    prompts = [f"{rng.choice(['A', 'One', 'The'])} row {i}" for i in range(count)]
    with tiny_llm(tmp_path, **OPTIONS) as llm, file.open("wb") as out:
        engine = llm._session.engine
        engine.executor = RecordingExecutor(engine.executor, out)
        llm.generate(prompts, [random_params(rng) for _ in prompts], use_tqdm=False)
        llm.beam_search(prompts[:8], BeamSearchParams(beam_width=3, max_tokens=6))
        assert engine.scheduler.num_preemptions > 0
    plans = [plan for plan, _ in recorded_steps(file)]
    assert any(plan.masks is not None for plan in plans)
    assert any(len(plan.searched) for plan in plans)
    assert any(start.sampling.has_penalties for plan in plans for start in plan.starts)
    with tiny_llm(tmp_path, **OPTIONS) as other:
        results = list(replay(file, other._session.engine.executor))
    assert len(results) == len(plans)
    for recorded, now in results:
        check_equal(recorded, now)


def test_a_changed_plan_is_noticed_by_the_replay(tmp_path: Path) -> None:
    """The fake executor hashes what stands in every slot, so a wrong block is another token."""
    setting = Setting(200, 4, 8, 64, 1, 1, True)
    file = tmp_path / "run.steps"
    requests = random_requests(random.Random(2))
    with file.open("wb") as out:
        engine = setting.engine()
        engine.executor = RecordingExecutor(engine.executor, out)
        run_all(engine, requests)
    for recorded, now in replay(file, setting.executor()):
        check_equal(recorded, now)
    steps = list(recorded_steps(file))
    executor = setting.executor()
    differs = False
    for plan, recorded in steps:
        for piece in plan.prefill:
            changed = piece.token_ids.copy()
            changed[0] += 1
            force_setattr(piece, "token_ids", changed)
        now = executor.submit(plan).result()
        differs |= not np.array_equal(now.tokens, recorded.tokens)
    assert differs


def test_a_file_that_is_cut_or_no_recording_is_a_typed_error(tmp_path: Path) -> None:
    file = tmp_path / "run.steps"
    file.write_bytes(b"something else")
    with pytest.raises(CorruptJob):
        list(recorded_steps(file))
    with file.open("wb") as out:
        engine = Setting(50, 4, 4, 32, 1, 1, True).engine()
        engine.executor = RecordingExecutor(engine.executor, out)
        run_all(engine, random_requests(random.Random(1))[:2])
    whole = file.read_bytes()
    file.write_bytes(whole[:-3])
    with pytest.raises(CorruptJob):
        list(recorded_steps(file))
