"""Models with windows write what Transformers writes, while blocks behind windows come back."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from quire.cache.groups import blocks_held
from quire.config import EngineConfig
from quire.executor.cpu.local import LocalExecutor
from quire.executor.memory import groups_of, windows_of
from quire.request import Request
from quire.sampling_params import SamplingParams
from tests.executor.cuda.plain import answers
from tests.parity.families import Pair, make_pair
from tests.specs import small_config

MODELS = (
    "mistral, window 9",
    "ministral, window 9 in some layers",
    "qwen2, two layers with window 7",
    "gemma3",
)
NEAR_TIE = 1e-3
PROMPT, OUTPUT = 70, 40  # several windows each


@cache
def pair_of(name: str) -> Pair:
    return make_pair(name)


def asked(count: int = 4) -> list[Request]:
    """Greedy; all begin with the same tokens."""
    rng = np.random.default_rng(2)
    shared = rng.integers(2, 96, PROMPT // 2, dtype=np.int32)
    return [
        Request(
            number=i,
            prompt_ids=np.append(shared, rng.integers(2, 96, PROMPT // 2 + i, dtype=np.int32)),
            params=SamplingParams(temperature=0.0, max_tokens=OUTPUT, ignore_eos=True),
            max_tokens=OUTPUT,
            noise_key=i,
        )
        for i in range(count)
    ]


def check(pair: Pair, requests: list[Request], config: EngineConfig) -> None:
    executor = LocalExecutor(config, pair.spec, dict(pair.weights))
    for request, sequence in zip(requests, answers(executor, config, requests), strict=True):
        assert sequence.error is None
        written = sequence.output_ids.tolist()
        assert len(written) == OUTPUT
        text = [*request.prompt_ids.tolist(), *written]
        logits = pair.expected(text)[request.num_prompt - 1 : -1]
        chosen = logits[torch.arange(OUTPUT), torch.tensor(written)]
        assert (logits.amax(1) - chosen < NEAR_TIE).all()


@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_prompts_of_several_windows(name: str, batch_invariant: bool) -> None:
    """Whole, in chunks that are no multiple of a block, and each over what another left cached."""
    pair, roomy = pair_of(name), small_config(num_blocks=400, batch_invariant=batch_invariant)
    check(pair, asked(), roomy)
    check(pair, asked(), replace(roomy, max_num_batched_tokens=21, max_repeat=4, depth=2))


@pytest.mark.parametrize("name", MODELS)
def test_a_pool_with_hardly_room_for_one(name: str) -> None:
    """Rows are preempted and come back, and blocks change hands all the time."""
    pair, config = pair_of(name), small_config(max_num_batched_tokens=24, depth=2, max_repeat=4)
    windows = windows_of(groups_of(config, pair.spec))
    assert any(window is not None for window in windows)
    num_blocks = blocks_held(windows, config.block_size, PROMPT + 4 + OUTPUT) + 24
    check(pair, asked(), replace(config, num_blocks=num_blocks))


@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize("in_c", [False, True])
def test_what_lies_behind_a_window_is_never_read(
    in_c: bool, batch_invariant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same tokens where whatever is given back turns into NaN at once."""
    if not in_c:
        monkeypatch.setattr("quire.backends.cpu.native.kernels.library", lambda: None)
    pair, requests = pair_of(MODELS[1]), asked(3)
    config = small_config(num_blocks=400, max_num_batched_tokens=24)
    config = replace(config, batch_invariant=batch_invariant)
    plain = LocalExecutor(config, pair.spec, dict(pair.weights))
    wanted = [s.output_ids.tolist() for s in answers(plain, config, requests)]
    executor = LocalExecutor(config, pair.spec, dict(pair.weights))
    found = answers(executor, config, requests, poisoned=True)
    assert [one.output_ids.tolist() for one in found] == wanted
