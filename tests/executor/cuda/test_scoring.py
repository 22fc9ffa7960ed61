"""Scores by the CUDA runner: the same as the plain runner's, in any company."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from quire.config import EngineConfig
from quire.executor.cpu.local import LocalExecutor
from quire.executor.cuda import runner as runner_module
from quire.request import NamedTokens, Request
from quire.sampling_params import SamplingParams
from quire.scheduler.sequence import Sequence
from quire.step import join_scores
from tests.executor.cuda.plain import PlainExecutor, answers
from tests.executor.cuda.test_runner import PLAIN, SPEC, SPECIAL, WEIGHTS, requests
from tests.specs import small_config


def scoring_requests(count: int = 8, seed: int = 5) -> list[Request]:
    """Contexts with continuations, and prompts whose logprobs are wanted."""
    rng = random.Random(seed)
    shared = [rng.randrange(200) for _ in range(20)]
    made = []
    for number in range(100, 100 + count):
        context = shared * (number % 2) + [rng.randrange(200) for _ in range(rng.randint(1, 30))]
        lengths = sorted((rng.choice([1, 1, 3, 9]) for _ in range(4)), reverse=True)
        continuations = [[rng.randrange(200) for _ in range(n)] for n in lengths]
        made.append(
            Request(
                number=number,
                prompt_ids=np.array(context, np.int32),
                params=SamplingParams(temperature=0, max_tokens=1),
                max_tokens=0,
                noise_key=0,
                continuations=tuple(np.array(ids, np.int32) for ids in continuations),
            )
        )
        asks = SamplingParams(temperature=0, max_tokens=4, prompt_logprobs=number % 4)
        prompt = np.array(context + continuations[0], np.int32)
        ids = np.array([[rng.randrange(200), -1] for _ in prompt[1:]], np.int32)
        named = NamedTokens(0, ids) if number % 3 == 0 else None
        made.append(Request(number + 1000, prompt, asks, 4, noise_key=number, named=named))
    return made


def check_scores(got: list[Sequence], wanted: list[Sequence], tolerance: float = 1e-4) -> None:
    num_lines = 0
    for one, other in zip(got, wanted, strict=True):
        assert one.num_scored == other.num_scored and one.error is None
        if not other.scores:
            continue
        mine, theirs = join_scores(one.scores), join_scores(other.scores)
        num_lines += len(mine)
        assert mine.token_ids.tolist() == theirs.token_ids.tolist()
        np.testing.assert_allclose(mine.logprobs, theirs.logprobs, atol=tolerance)
        np.testing.assert_allclose(mine.top_logprobs, theirs.top_logprobs, atol=tolerance)
    assert num_lines > 300


@pytest.mark.parametrize("company", [[], PLAIN, SPECIAL], ids=["alone", "plain", "special"])
@pytest.mark.parametrize(("depth", "num_blocks", "rounded"), [(1, 128, False), (2, 40, True)])
def test_scores_equal_the_plain_runners(
    monkeypatch: pytest.MonkeyPatch,
    company: list[dict[str, object]],
    depth: int,
    num_blocks: int,
    rounded: bool,
) -> None:
    monkeypatch.setattr(runner_module, "CUDA_BYTES", 7 * SPEC.vocab_size * 4)
    config = small_config(depth=depth, max_repeat=8, num_blocks=num_blocks)
    asked = scoring_requests() + (requests(company) if company else [])
    got = answers(PlainExecutor(config, SPEC, WEIGHTS, rounded=rounded), config, asked)
    check_scores(got, expected(asked, config))


def expected(asked: list[Request], config: EngineConfig) -> list[Sequence]:
    plain = replace(config, device="cpu", depth=1, max_repeat=1, num_blocks=512)
    return answers(LocalExecutor(plain, SPEC, dict(WEIGHTS)), plain, asked)
