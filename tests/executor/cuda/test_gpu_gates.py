"""Passes of so many rows that a gate is part of its product, beside launches of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM

from quire import LLM, SamplingParams
from quire.backends.cuda_c import gated
from quire.backends.cuda_c.gated import GatedRows
from tests.weights.quantised_files import CASES, write_quantised

pytestmark = pytest.mark.gpu
SIZES: dict[str, Any] = {
    "vocab_size": 520,
    "hidden_size": 256,
    "intermediate_size": 2048,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
}


def save(kind: str, folder: Path) -> None:
    torch.manual_seed(6)
    model: Any
    if kind == "gelu":
        model = Gemma2ForCausalLM(Gemma2Config(**SIZES))
    else:
        model = LlamaForCausalLM(LlamaConfig(**SIZES, mlp_bias=kind == "biases"))
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.copy_(torch.randn_like(tensor) * 0.05 + (tensor.dim() == 1))
    if kind == "4 bits":
        write_quantised(model, folder, CASES["awq"])
    else:
        model.bfloat16().save_pretrained(folder)


@pytest.mark.parametrize("kind", ["silu", "biases", "gelu", "4 bits"])
def test_prompts_are_answered_as_with_a_launch_for_the_gate(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(kind, tmp_path)
    rows: set[int] = set()
    multiply = gated.multiply_gated

    def counted(weight: Tensor, x: Tensor, *more: Any) -> Tensor:
        rows.add(len(x))
        return multiply(weight, x, *more)

    monkeypatch.setattr(gated, "multiply_gated", counted)
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=0)
    usual: dict[str, Any] = {"skip_tokenizer_init": True, "dtype": "bfloat16"}
    usual |= {"kv_cache_memory_bytes": 256 << 20, "max_model_len": 256, "max_num_seqs": 128}
    prompts = [[(7 * i + j * j) % 500 for j in range(90 + i % 9)] for i in range(88)]
    found: dict[bool, list[float]] = {}
    for joined in (True, False):
        if not joined:
            monkeypatch.setattr(GatedRows, "of", lambda *_: None)
        with LLM(str(tmp_path), **usual) as llm:
            scores = found[joined] = []
            for output in llm.generate(prompts, params, use_tqdm=False):
                made = output.outputs[0].logprobs
                assert made is not None
                scores.append(next(iter(made[0].values())).logprob)
    apart = torch.tensor(found[True]) - torch.tensor(found[False])
    assert float(apart.abs().mean()) < 0.01
    assert float(apart.abs().max()) < 0.1
    if torch.cuda.get_device_capability() == (9, 0):
        assert max(rows) >= 8000
