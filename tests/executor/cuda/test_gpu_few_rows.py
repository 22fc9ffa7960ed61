"""Steps of few rows on a GPU, beside the same model's usual layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from quire import LLM, SamplingParams
from quire.backends.cuda_c import plain
from quire.executor.cuda.small_batch import SmallBatchPass

pytestmark = pytest.mark.gpu
SIZES: dict[str, Any] = {
    "vocab_size": 520,
    "hidden_size": 192,
    "intermediate_size": 416,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
}


def save(kind: str, folder: Path) -> None:
    """With weights so large that the layers matter. A vocabulary of 521 has no whole eights."""
    torch.manual_seed(5)
    model: Any
    if kind == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**SIZES, tie_word_embeddings=True))
    else:
        sizes = {**SIZES, "vocab_size": 521 if kind == "odd head" else 520}
        model = LlamaForCausalLM(LlamaConfig(**sizes, mlp_bias=kind == "biases"))
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.copy_(torch.randn_like(tensor) * 0.1 + (tensor.dim() == 1))
    model.bfloat16().save_pretrained(folder)


@pytest.mark.parametrize("kind", ["llama", "biases", "qwen3", "odd head"])
def test_any_number_of_rows_answers_as_the_usual_layers(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(kind, tmp_path)
    called: set[int] = set()
    multiply = plain.multiply_plain

    def counted(weight: Tensor, x: Tensor, bias: Tensor | None, **more: Any) -> Tensor:
        called.add(len(x))
        return multiply(weight, x, bias, **more)

    monkeypatch.setattr(plain, "multiply_plain", counted)
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True, logprobs=0)
    usual: dict[str, Any] = {"skip_tokenizer_init": True, "dtype": "bfloat16"}
    usual |= {"kv_cache_memory_bytes": 64 << 20, "max_model_len": 256, "max_num_seqs": 128}
    found: dict[bool, list[float]] = {}
    for few_rows in (True, False):
        if not few_rows:
            monkeypatch.setattr(SmallBatchPass, "of", lambda *_: None)
        with LLM(str(tmp_path), **usual) as llm:
            scores = found[few_rows] = []
            for count in (1, 9, 32, 60, 90, 128):
                prompts = [[(7 * i + j * j) % 500 for j in range(5 + i % 9)] for i in range(count)]
                for output in llm.generate(prompts, params, use_tqdm=False):
                    made = output.outputs[0].logprobs
                    assert made is not None
                    scores += [next(iter(made[i].values())).logprob for i in (0, 1)]
    apart = torch.tensor(found[True]) - torch.tensor(found[False])
    assert float(apart.abs().mean()) < 0.02
    assert float(apart.abs().max()) < 0.3
    if torch.cuda.get_device_capability() == (9, 0):
        assert {1, 32, 64, 96, 128} <= called
