"""Quantised checkpoints through LLM on a CPU, against Transformers on the weights they mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from quire import LLM
from quire.errors import InvalidOption
from tests.parity.more_families import LATENTS, random_model
from tests.parity.test_families import check_directory
from tests.weights.quantised_files import CASES, meant_model, write_quantised
from tests.weights.tiny import SIZES, tiny_model

RUN = ("awq", "gptq desc_act", "packed with zeros", "int8", "fp8 blocks", "nf4 nested")


@pytest.mark.parametrize("name", RUN)
def test_greedy_equals_transformers_on_the_weights_it_means(name: str, tmp_path: Path) -> None:
    model = tiny_model("qwen3")
    state = write_quantised(model, tmp_path / "quantised", CASES[name])
    oracle = meant_model(model, tmp_path / "plain", state)
    check_directory(tmp_path / "quantised", oracle, name, count=4, most=8)


def experts() -> Any:
    config = Qwen3MoeConfig(
        **{**SIZES, "intermediate_size": 128},
        moe_intermediate_size=64,
        num_experts=4,
        num_experts_per_tok=2,
        decoder_sparse_step=1,
        norm_topk_prob=True,
    )
    return Qwen3MoeForCausalLM(config).eval()


@pytest.mark.parametrize("name", ["awq", "fp8 blocks"])
def test_experts_are_quantised_one_by_one(name: str, tmp_path: Path) -> None:
    model = experts()
    state = write_quantised(model, tmp_path / "quantised", CASES[name])
    assert any("experts.3.down_proj" in key for key in state)
    oracle = meant_model(model, tmp_path / "plain", state)
    check_directory(tmp_path / "quantised", oracle, name, count=4, most=8)


def test_products_that_are_taken_apart_are_read_from_blocks(tmp_path: Path) -> None:
    """Latent attention has the weight of keys and values by head, and turned; blocks do not."""
    model = random_model(LATENTS["deepseek v3, groups, yarn"])
    state = write_quantised(model, tmp_path / "quantised", CASES["fp8 blocks"])
    oracle = meant_model(model, tmp_path / "plain", state)
    check_directory(tmp_path / "quantised", oracle, "latents", count=4, most=8)


def test_an_option_names_what_a_checkpoint_is(tmp_path: Path) -> None:
    write_quantised(tiny_model("llama"), tmp_path, CASES["gptq"])
    usual: dict[str, Any] = {"skip_tokenizer_init": True, "kv_cache_memory_bytes": 1 << 20}
    for named in ("gptq", "gptq_marlin", "none", "int8"):
        with LLM(str(tmp_path), quantization=named, **usual) as llm:
            assert len(llm.generate([[5, 7]], use_tqdm=False)[0].outputs[0].token_ids) > 0
    with pytest.raises(InvalidOption, match="the checkpoint is gptq"):
        LLM(str(tmp_path), quantization="awq", **usual)
    tiny_model("llama").save_pretrained(tmp_path)
    with pytest.raises(InvalidOption, match="is not quantised"):
        LLM(str(tmp_path), quantization="awq", **usual)
