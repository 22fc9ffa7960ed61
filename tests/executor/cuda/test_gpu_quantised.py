"""Checkpoints that stay quantised on a GPU, through the whole engine, beside their plain form."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from quire import LLM, SamplingParams
from quire.backends.cuda_c.packed import multiply_packed
from quire.executor.cuda import small_batch
from tests.weights.quantised_files import CASES, write_quantised

pytestmark = pytest.mark.gpu
# Few rows by the kernels of few rows, rows that share a pass with prompts, and many of them.
COUNTS = (5, 20, 40)


@pytest.fixture(scope="module")
def plain() -> LlamaForCausalLM:
    config = LlamaConfig(hidden_size=256, intermediate_size=512, num_hidden_layers=2)
    config.num_attention_heads, config.num_key_value_heads, config.vocab_size = 4, 2, 512
    config.head_dim = 64
    torch.manual_seed(1)
    return LlamaForCausalLM(config).eval()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("case", "kept_as"),
    [
        ("awq", "4 bits"),
        ("gptq desc_act", "4 bits"),
        ("packed by row", "4 bits"),
        ("fp8 by tensor", "fp8"),
    ],
)
def test_weights_stay_as_they_are_and_answer_as_plain_ones(
    plain: LlamaForCausalLM,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    case: str,
    kept_as: str,
) -> None:
    """With nothing asked for; on other GPUs than Hopper's they are made plain, and that is said."""
    write_quantised(plain, tmp_path, CASES[case])
    caplog.set_level(logging.INFO, "quire")
    on_the_way: set[str] = set()

    def counted(*given: Any, **more: Any) -> Tensor:
        on_the_way.update(name for name, one in more.items() if one)
        return multiply_packed(*given, **more)

    plain_rows: set[int] = set()
    multiply_plain = small_batch.plain.multiply_plain

    def counted_plain(weight: Tensor, x: Tensor, *given: Any, **more: Any) -> Tensor:
        if more.get("added"):  # in a layer
            plain_rows.add(len(x))
        return multiply_plain(weight, x, *given, **more)

    monkeypatch.setattr(small_batch, "multiply_packed", counted)
    monkeypatch.setattr(small_batch.plain, "multiply_plain", counted_plain)
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=0)
    usual: dict[str, Any] = {"skip_tokenizer_init": True, "dtype": "bfloat16"}
    usual |= {"kv_cache_memory_bytes": 32 << 20, "max_model_len": 256}
    firsts: dict[str, list[float]] = {}
    for way in ("", "none"):
        asked = {"quantization": way} if way else {}
        plain_rows.clear()
        with LLM(str(tmp_path), **usual, **asked) as llm:
            found = firsts[way] = []
            for count in COUNTS:
                prompts = [[(7 * i + j * j) % 500 for j in range(10 + i)] for i in range(count)]
                for output in llm.generate(prompts, params, use_tqdm=False):
                    scores = output.outputs[0].logprobs
                    assert scores is not None
                    # The second token comes of a decode step, by the kernels of few rows.
                    found += [next(iter(scores[i].values())).logprob for i in (0, 1)]
        if way == "" and kept_as == "4 bits" and torch.cuda.get_device_capability() == (9, 0):
            assert max(plain_rows) >= 40, "rows that are too many for codes took usual layers"
    apart = torch.tensor(firsts[""]) - torch.tensor(firsts["none"])
    assert float(apart.abs().mean()) < 0.02, firsts
    is_hopper = torch.cuda.get_device_capability() == (9, 0)
    assert (f"the weights stay in {kept_as}" in caplog.text) == is_hopper
    if is_hopper and kept_as == "4 bits":
        assert {"added"} <= on_the_way and (case != "awq" or {"norm", "gated"} <= on_the_way)
