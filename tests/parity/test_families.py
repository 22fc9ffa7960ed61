"""Every family, from a Hugging Face directory through LLM, against Transformers' own greedy."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from quire import LLM, SamplingParams
from tests.parity.families import FAMILIES, make_pair

NEAR_TIE = 1e-3


@torch.no_grad()
def check_against(oracle: Any, prompt: list[int], tokens: list[int], logprobs: list[float]) -> None:
    """Each token is the oracle's likeliest, or within a near tie of it; logprobs agree."""
    text = torch.tensor([[*prompt, *tokens]])
    chances = oracle(text).logits[0].float().log_softmax(-1)
    for i, token in enumerate(tokens):
        at = chances[len(prompt) + i - 1]
        assert abs(float(at[token]) - logprobs[i]) <= 1e-3
        assert float(at.max() - at[token]) < NEAR_TIE


def check_directory(directory: Path, oracle: Any, name: str, *, count: int, most: int) -> None:
    """Greedy answers of the model in a directory, chunked, and half behind a shared beginning."""
    rng = random.Random(name)
    shared = [rng.randrange(96) for _ in range(40)]
    prompts = [
        shared[: 40 * (number % 2)] + [rng.randrange(96) for _ in range(rng.randint(1, 30))]
        for number in range(count)
    ]
    check_greedy(directory, oracle, prompts, most, max_num_batched_tokens=37, max_num_seqs=8)


def check_greedy(
    directory: Path, oracle: Any, prompts: list[list[int]], most: int, **options: Any
) -> None:
    params = SamplingParams(temperature=0, max_tokens=most, ignore_eos=True, logprobs=0)
    usual: dict[str, Any] = {"dtype": "float32", "skip_tokenizer_init": True}
    with LLM(str(directory), **usual, kv_cache_memory_bytes=4 << 20, **options) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
    for prompt, output in zip(prompts, outputs, strict=True):
        answer = output.outputs[0]
        assert answer.logprobs is not None
        lps = [p[t].logprob for p, t in zip(answer.logprobs, answer.token_ids, strict=True)]
        check_against(oracle, prompt, list(answer.token_ids), lps)


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_equals_transformers(name: str, tmp_path: Path) -> None:
    pair = make_pair(name)
    # Small shards, so that the index is read too.
    pair.oracle.save_pretrained(tmp_path, max_shard_size="40KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    check_directory(tmp_path, pair.oracle, name, count=8, most=16)
