"""Two processes for models whose plans have more than a plain decoder's: scaled ropes, states and
nothing beside them, several streams, embeddings of layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from quire import LLM, SamplingParams
from tests.ranks.test_shares import CONFIGS

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=0, prompt_logprobs=0)
BEGINNING = [(5 * i + i * i) % 90 for i in range(40)]
PROMPTS = [[5, 6, 7], [*BEGINNING, 3, 8], [*BEGINNING, 11], [9] * 21]
NAMES = (
    *("llama3 rope", "llama yarn", "phi3, partial longrope", "mamba2", "gemma3n"),
    "mamba2, every bias, one group, narrow, tied",
    "gemma3n, widths by layer, three streams, every bias, untied, other ropes",
)


def answers(directory: Path, size: int) -> tuple[list[list[int]], list[float]]:
    options: dict[str, Any] = {"kv_cache_memory_bytes": 4 << 20, "max_num_seqs": 8}
    options |= {"dtype": "float32", "skip_tokenizer_init": True, "max_num_batched_tokens": 37}
    tokens: list[list[int]] = []
    logprobs: list[float] = []
    with LLM(str(directory), **options, tensor_parallel_size=size) as llm:
        for _ in range(2):  # with what the first time has left in the prefix cache, too
            for prompt, one in zip(PROMPTS, llm.generate(PROMPTS, GREEDY), strict=True):
                found = one.outputs[0]
                tokens.append(list(found.token_ids))
                lines = zip(found.logprobs, found.token_ids, strict=True)
                behind = zip(one.prompt_logprobs[1:], prompt[1:], strict=True)
                logprobs += [line[token].logprob for line, token in (*behind, *lines)]
    return tokens, logprobs


@pytest.mark.parametrize("name", NAMES)
def test_two_processes_answer_as_one(name: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(CONFIGS[name])
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(tmp_path)
    (tokens, logprobs), (whole, expected) = (answers(tmp_path, size) for size in (2, 1))
    assert tokens == whole
    assert logprobs == pytest.approx(expected, abs=1e-4)
