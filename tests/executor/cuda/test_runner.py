"""The CUDA runner's bookkeeping, over plain torch on a CPU: same tokens as the plain runner's."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from quire.config import EngineConfig
from quire.executor.cpu.local import LocalExecutor
from quire.executor.cuda.prompts import Bucket, bucket_for
from quire.request import Request
from quire.sampling.keys import noise_key
from quire.sampling_params import SamplingParams
from quire.scheduler.sequence import Sequence
from quire.weights.load import dummy_weights
from tests.executor.cuda.plain import PlainExecutor, answers
from tests.executor.harness import told
from tests.specs import small_config, small_spec

SPEC = small_spec(vocab_size=200, intermediate_size=48, head_dim=16, tied_embeddings=True)
WEIGHTS = {
    name: w * 10 if w.dim() == 2 else w
    for name, w in dummy_weights(SPEC, dtype=torch.float32, device="cpu").items()
}
PLAIN: list[dict[str, object]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.9},
    {"temperature": 1.2, "min_p": 0.05},
    {"temperature": 1.0, "n": 3},
]
SPECIAL: list[dict[str, object]] = [
    {"temperature": 0.0, "repetition_penalty": 1.3, "logprobs": 2},
    {"temperature": 1.0, "logit_bias": {3: 5.0}, "prompt_logprobs": 1},
    {"temperature": 1.0, "min_tokens": 9, "presence_penalty": 0.5},
]
# Plans in flight, steps of one, blocks.
ROOMS = [(1, 1, 128), (2, 8, 128), (3, 32, 40)]


def requests(kinds: list[dict[str, object]], count: int = 14, seed: int = 3) -> list[Request]:
    rng = random.Random(seed)
    shared = [rng.randrange(200) for _ in range(20)]
    made = []
    for number in range(count):
        own = [rng.randrange(200) for _ in range(rng.randint(1, 40))]
        most = rng.randint(1, 30)
        kind: dict[str, Any] = dict(kinds[number % len(kinds)])
        kind["min_tokens"] = min(kind.get("min_tokens", 0), most)
        params = SamplingParams(max_tokens=most, **kind)
        made.append(
            Request(
                number=number,
                prompt_ids=np.array(shared * (number % 2) + own, np.int32),
                params=params,
                max_tokens=most,
                noise_key=noise_key(number),
                eos_ids=frozenset({5, 6}),
                stop_ids=frozenset({17}) if number % 3 == 0 else frozenset(),
            )
        )
    return made


def expected(asked: list[Request], config: EngineConfig) -> list[Sequence]:
    plain = replace(config, depth=1, max_repeat=1, num_blocks=256)
    return answers(LocalExecutor(plain, SPEC, dict(WEIGHTS)), plain, asked)


@pytest.mark.parametrize(
    "kinds", [PLAIN, SPECIAL, PLAIN + SPECIAL], ids=["plain", "special", "mixed"]
)
def test_any_depth_and_repeat_gives_the_tokens_of_one_step_at_a_time(
    kinds: list[dict[str, object]],
) -> None:
    alone = expected(requests(kinds), small_config())
    for depth, max_repeat, num_blocks in ROOMS:
        config = small_config(depth=depth, max_repeat=max_repeat, num_blocks=num_blocks)
        got = answers(PlainExecutor(config, SPEC, WEIGHTS), config, requests(kinds))
        for one, wanted in zip(got, alone, strict=True):
            assert one.output_ids.tolist() == wanted.output_ids.tolist(), config
            assert one.finish_reason == wanted.finish_reason, config
            assert one.stop_reason == wanted.stop_reason, config
            for mine, theirs in ((one.logprobs, wanted.logprobs), (one.scores, wanted.scores)):
                assert told(mine)[0] == told(theirs)[0], config
                np.testing.assert_allclose(told(mine)[1], told(theirs)[1], atol=1e-4)


def test_rounding_prompts_up_to_a_bucket_changes_no_token() -> None:
    config = small_config(depth=2, max_repeat=8, num_blocks=128)
    got = answers(PlainExecutor(config, SPEC, WEIGHTS, rounded=True), config, requests(PLAIN))
    wanted = expected(requests(PLAIN), config)
    assert [s.output_ids.tolist() for s in got] == [s.output_ids.tolist() for s in wanted]


@pytest.mark.parametrize(
    ("num_tokens", "num_sequences", "expected"),
    [
        (1, 1, (256, 32)),
        (257, 33, (320, 256)),
        (700, 3, (768, 32)),
        (2048, 256, (2048, 256)),
        (2100, 10, None),  # more than an eighth of 2,560 would be empty
        (2300, 10, (2560, 32)),
        (16_300, 16, (16_384, 32)),
        (3500, 300, (3584, 1024)),
        (3500, 1025, None),
        (5000, 3, None),
    ],
)
def test_buckets_waste_little(
    num_tokens: int, num_sequences: int, expected: tuple[int, int] | None
) -> None:
    found = bucket_for(num_tokens, num_sequences, 16_384)
    assert found == (None if expected is None else Bucket(*expected))


def test_a_row_with_infinite_logits_fails_alone() -> None:
    untied = replace(SPEC, tied_embeddings=False)
    broken = {**WEIGHTS, "head.weight": WEIGHTS["embed.weight"]}
    broken["embed.weight"] = broken["embed.weight"].clone()
    broken["embed.weight"][7] = torch.inf
    # Nobody but the last may meet token 7.
    never = {"temperature": 0.0, "logit_bias": {7: -100.0}}
    config = small_config(depth=2, max_repeat=8)
    asked = [r for r in requests([never], count=8) if 7 not in r.prompt_ids]
    params = SamplingParams(max_tokens=4, temperature=0.0)
    asked.append(Request(99, np.array([1, 7, 2], np.int32), params, 4, noise_key(1)))
    got = answers(PlainExecutor(config, untied, broken), config, asked)
    assert [s.request.number for s in got if s.error is not None] == [99]
    assert len(got) > 1
