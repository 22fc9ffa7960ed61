"""Llama 4 with texts of several chunks: layers that see a token's own chunk alone, beside layers
that see everything, write what Transformers writes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from quire import LLM, SamplingParams, UnsupportedModel
from quire.executor.driver import Gpu
from quire.families.chunks import chunk_of
from quire.spec import ModelSpec
from tests.adapters.peft_files import logprobs
from tests.parity.families import known
from tests.parity.more_families import random_model
from tests.parity.newest_families import LLAMA4
from tests.parity.test_same_tokens import preempt_every_second_step

CHUNK = 16
LONG = torch.randint(2, 96, (53,), generator=torch.Generator().manual_seed(6)).tolist()
# Of three chunks and more, whose answers begin inside of one, before its end and at its beginning.
PROMPTS = [LONG, LONG[:46], LONG[:32], LONG[20:]]
OTHERS = [[*LONG[:35], 5, 6, 7], LONG]  # what others left cached, and then another chunk
PARAMS = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=0, prompt_logprobs=0)
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}
CASES: dict[str, dict[str, Any]] = {
    "whole": {},
    "in parts": {"max_num_batched_tokens": 21},
    "invariant": {"batch_invariant": True, "max_num_batched_tokens": 37},
    "one block is a chunk, guesses": {"block_size": CHUNK, "speculative_config": NGRAM},
    "preempted": {"num_gpu_blocks_override": 80},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("llama4")


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Callable[[tuple[int, ...]], Tensor]:
    config = known("Llama4TextConfig", **{**LLAMA4, "attention_chunk_size": CHUNK})
    model = random_model(config)
    model.save_pretrained(folder)
    return cache(lambda text: logprobs(model, text))


def open_llm(path: Path, **options: Any) -> LLM:
    given: dict[str, Any] = {"dtype": "float32", "skip_tokenizer_init": True, "block_size": 4}
    given |= {"kv_cache_memory_bytes": 4 << 20, "max_num_seqs": 8, "device": "cpu"}
    return LLM(str(path), model_impl="quire", **{**given, **options})


@pytest.mark.parametrize("case", CASES)
def test_texts_of_several_chunks(
    case: str, oracle: Callable[[tuple[int, ...]], Tensor], folder: Path
) -> None:
    with open_llm(folder, **CASES[case]) as llm:
        if case == "preempted":
            preempt_every_second_step(llm._session.engine.scheduler)
        for prompts in (PROMPTS, OTHERS):
            for output in llm.generate(prompts, PARAMS, use_tqdm=False):
                prompt, answer = output.prompt_token_ids, output.outputs[0]
                assert prompt and output.prompt_logprobs and answer.logprobs
                text = (*prompt, *answer.token_ids)
                steps = [*output.prompt_logprobs[1:], *answer.logprobs]
                ours = [step[token].logprob for step, token in zip(steps, text[1:], strict=True)]
                theirs = oracle(text)[range(len(text) - 1), text[1:]]
                assert torch.tensor(ours) == pytest.approx(theirs, abs=1e-4)
                drawn = oracle(text)[len(prompt) - 1 : -1]
                assert (drawn.amax(1) - theirs[len(prompt) - 1 :] < 1e-4).all()
        assert (llm._session.engine.scheduler.num_preemptions > 1) == (case == "preempted")


def max_len(llm: LLM) -> tuple[int, int]:
    model = llm._session.model
    assert isinstance(model.spec, ModelSpec)
    return model.config.max_model_len, chunk_of(model.spec)


def test_chunks_are_left_out_where_texts_are_no_longer_than_one(
    oracle: object, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Because that is asked for, or because longer ones cannot be computed: which is refused where
    they are asked for."""
    with open_llm(folder) as llm:
        assert max_len(llm) == (512, CHUNK)
    with open_llm(folder, max_model_len=CHUNK) as llm:
        assert max_len(llm) == (CHUNK, 0)
    with open_llm(folder, block_size=32) as llm:
        assert max_len(llm) == (CHUNK, 0)
    with pytest.raises(UnsupportedModel, match="40 is above .* 16: .* divide it, not 32 tokens"):
        open_llm(folder, block_size=32, max_model_len=40)
    monkeypatch.setattr("quire.session.fallback.torch_knows_cuda", lambda: True)
    monkeypatch.setattr("quire.session.fallback.first_gpu", lambda: Gpu)
    with pytest.raises(UnsupportedModel, match="not built for a GPU.*device='cpu'.*transformers"):
        open_llm(folder, device=None, max_model_len=40)
    with open_llm(folder, max_model_len=40) as llm:
        assert max_len(llm) == (40, CHUNK)
