"""What an adapter makes of a model, against PEFT's arithmetic on Transformers' layers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from quire import SamplingParams
from quire.adapters.plan import plan_adapter
from quire.adapters.sites import sites_of
from quire.errors import InvalidAdapter
from quire.weights.hf_config import read_config, spec_from_hf
from tests.adapters.conftest import Where
from tests.adapters.peft_files import (
    Peft,
    applied,
    logprobs,
    make_peft,
    merged,
    named,
    open_llm,
    random_model,
)
from tests.parity.families import FAMILIES
from tests.parity.families_by_kind import BY_KIND
from tests.parity.families_with_states import WITH_STATES, skip_if_normed_together
from tests.parity.later_families import LATER
from tests.parity.more_families import LATENTS, MORE
from tests.parity.newest_families import NEWEST
from tests.parity.older_families import OLDER

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=0, prompt_logprobs=0)
PROMPTS = [[5, 6, 7], [9] * 21 + [3, 8], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]]
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL = (*ATTENTION, "gate_proj", "up_proj", "down_proj")
STATE = ("in_proj", "out_proj")  # products around a state
ALTUP = ("correction_coefs", "altup_projections.0", "altup_unembed_projections.2")
CASES: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "all modules, tied": ("llama", ALL, {}),
    "q and v alone, rslora": ("qwen2", ("q_proj", "v_proj"), {"use_rslora": True}),
    "patterns": (
        "qwen3",
        ALL,
        {
            "rank_pattern": {"layers.1.mlp.up_proj": 7, "k_proj": 2},
            "alpha_pattern": {"layers.1.mlp.up_proj": 1, "o_proj": 11},
        },
    ),
    "dora beside biases": ("llama untied, every bias", ALL, {"use_dora": True}),
    "dora, heads whose rows are in another order": (
        "phi3, partial longrope",
        ("qkv_proj", "o_proj"),
        {"use_dora": True},
    ),
    "fused modules": ("phi3, window 9", ("qkv_proj", "gate_up_proj", "down_proj"), {}),
    "embedding and head of one matrix": ("qwen3", ("embed_tokens", "lm_head", "q_proj"), {}),
    "embedding and head, untied": ("qwen3 untied", ("embed_tokens", "lm_head"), {}),
    "scaled embedding, norms behind": ("gemma3", ALL, {}),
    "scaled embedding and head of one matrix": ("gemma3", ("embed_tokens", "lm_head"), {}),
    "embedding with a multiplier": (
        "granite, every factor and bias",
        ("embed_tokens", "q_proj"),
        {},
    ),
    "scaled embedding beside positions": ("biogpt", ("embed_tokens", "q_proj"), {}),
    "scaled embedding beside waves": ("xglm", ("embed_tokens", "q_proj"), {}),
    "scaled embedding before states": (
        "falcon h1, factors, normed behind the gate, biases",
        ("embed_tokens", "q_proj"),
        {},
    ),
    "scaled embedding of latents": ("minicpm3", ("embed_tokens", "o_proj"), {}),
    "scaled embedding beside embeddings of layers": (
        "gemma4, embeddings of layers, keys of others, wider",
        ("embed_tokens", "q_proj"),
        {},
    ),
    "scaled embedding of streams": ("gemma3n", ("embed_tokens", "q_proj"), {}),
    "rows in another order": ("glm", (*ATTENTION, "gate_up_proj"), {}),
    "attention of experts": ("qwen3 moe", ATTENTION, {}),
    "a shared expert": ("qwen2 moe", (*ATTENTION, "shared_expert.gate_proj"), {}),
    "side by side": ("cohere", ALL, {}),
    "stored [in, out], dora": ("gpt2", ("c_attn", "c_proj", "c_fc"), {"use_dora": True}),
    "keys of other layers, embeddings for single layers": (
        "gemma4, embeddings of layers, keys of others, wider",
        (*ALL, "per_layer_input_gate", "per_layer_projection", "per_layer_model_projection"),
        {},
    ),
    "values that are keys, dora": ("gemma4, values are keys", ATTENTION, {"use_dora": True}),
    "beside experts": ("gemma4, experts, every bias, untied, other ropes", ALL, {}),
    "heads normed behind their rotation": ("hunyuan dense", ALL, {}),
    "heads side by side in one module": ("gpt neox", ("query_key_value", "dense"), {}),
    "interleaved pairs, side by side": (
        "gptj",
        ("q_proj", "k_proj", "v_proj", "out_proj", "fc_in", "fc_out", "lm_head"),
        {},
    ),
    "windows in some layers, scores not scaled": (
        "gpt_neo",
        ("q_proj", "k_proj", "v_proj", "out_proj", "c_fc", "c_proj", "wte"),
        {},
    ),
    "LayerNorms of heads that one module has side by side": (
        "persimmon",
        ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"),
        {},
    ),
    "limited heads, and a router": ("dbrx", ("Wqkv", "out_proj", "router.layer"), {}),
    "a head of another name, dora": (
        "biogpt, not scaled, relu, untied",
        ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2", "output_projection"),
        {"use_dora": True},
    ),
    "positions as waves": (
        "xglm",
        ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"),
        {},
    ),
    "norms before last products": ("bitnet", ALL, {}),
    "values before keys in blocks of one module, dora": (
        "codegen",
        ("qkv_proj", "out_proj", "fc_in", "fc_out"),
        {"use_dora": True},
    ),
    "states, heads of keys side by side, dora": (
        "qwen3_next",
        ("in_proj_qkvz", "in_proj_ba", "out_proj", *ATTENTION, "shared_expert.gate_proj"),
        {"use_dora": True},
    ),
    "states, parts apart": (
        "qwen3_5",
        ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj", *ALL),
        {},
    ),
    "states and a shared expert, every bias, dora": (
        "granite hybrid, experts, every bias, rope, untied",
        (*STATE, *ATTENTION, "input_linear", "output_linear", "router.layer"),
        {"use_dora": True},
    ),
    "states of one group of keys": ("bamba, every bias, one group, tied, all turned", STATE, {}),
    "states with factors, beside attention": (
        "falcon h1, factors, normed behind the gate, biases",
        (*STATE, *ALL),
        {},
    ),
    "states beside experts without a gate": (
        "nemotron h, every bias, groups of experts, least steps",
        (*STATE, *ATTENTION, "mixer.up_proj", "mixer.down_proj", "shared_experts.up_proj"),
        {},
    ),
    "states and nothing beside them, dora": (
        "mamba2, every bias, one group, narrow, tied",
        STATE,
        {"use_dora": True},
    ),
    "one of several streams, dora": (
        "gemma3n",
        (*ALL, "linear_left", "linear_right", "modality_router", "prediction_coefs", *ALTUP),
        {"use_dora": True},
    ),
    "keys and values of latents": (
        "deepseek v2 lite",
        ("kv_b_proj", "q_proj", "kv_a_proj_with_mqa", "o_proj"),
        {},
    ),
    "keys and values of latents, every bias, halves": (
        "deepseek v3, every bias, halves, no rank, not renormalised",
        ("kv_b_proj", "o_proj"),
        {},
    ),
    "a head of another name": ("gpt neox", ("embed_in", "lm_head"), {}),
    "shared experts of another name, every bias, dora": (
        "hy_v3, two shared, dense in the middle, every bias, tied, linear rope",
        ALL,
        {"use_dora": True},
    ),
    "convolutions": (
        "lfm2, every bias, reach of 2, untied, width adjusted, linear rope",
        (*STATE, "q_proj", "self_attn.out_proj", "w1", "w2", "w3"),
        {"use_dora": True},
    ),
}


def check(found: Any, oracle: Any, prompt: list[int], within: float = 1e-4) -> None:
    answer = found.outputs[0]
    text = [*prompt, *answer.token_ids]
    theirs = logprobs(oracle, text)
    ours = [p[t].logprob for p, t in zip(answer.logprobs, answer.token_ids, strict=True)]
    expected = theirs[len(prompt) - 1 : -1].gather(1, torch.tensor(answer.token_ids)[:, None])
    assert torch.tensor(ours) == pytest.approx(expected[:, 0], abs=within)
    assert answer.token_ids[0] == int(theirs[len(prompt) - 1].argmax())
    scored = [p[t].logprob for p, t in zip(found.prompt_logprobs[1:], prompt[1:], strict=True)]
    before = theirs[: len(prompt) - 1].gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]
    assert torch.tensor(scored) == pytest.approx(before, abs=within)


@pytest.mark.parametrize("case", CASES)
def test_an_adapter_changes_a_model_as_peft_does(case: str, where: Where, tmp_path: Path) -> None:
    name, targets, config = CASES[case]
    skip_if_normed_together(name)
    every = {**FAMILIES, **MORE, **BY_KIND, **LATER, **LATENTS, **NEWEST}
    every |= {**WITH_STATES, **OLDER}
    model = random_model(every[name])
    model.save_pretrained(tmp_path / "base")
    first = make_peft(model, targets, **config)
    second = make_peft(model, targets[:1], seed=2, rank=3)
    one, other = first.save(tmp_path / "first"), second.save(tmp_path / "second")
    asked = [named(one), None, named(other, 2)]
    with open_llm(tmp_path / "base", **where.options) as llm:
        outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False, lora_request=asked)
    with applied(model, first):
        check(outputs[0], model, PROMPTS[0], where.within)
        strange = logprobs(model, PROMPTS[0])
    assert (strange - logprobs(model, PROMPTS[0])).abs().max() > 0.05, "the adapter does nothing"
    check(outputs[1], model, PROMPTS[1], where.within)
    with applied(model, second):
        check(outputs[2], model, PROMPTS[2], where.within)


@pytest.mark.parametrize(
    "name", ["gemma3, softcap, every bias, untied", "granite, every factor and bias"]
)
def test_what_is_added_to_a_scaled_embedding_is_what_merging_makes_of_it(name: str) -> None:
    """So PEFT's arithmetic, by which adapters are judged here, contains the model's factor."""
    model = random_model({**FAMILIES, **MORE}[name])
    peft = make_peft(model, ("embed_tokens",))
    with applied(model, peft):
        beside = logprobs(model, PROMPTS[2])
    before = logprobs(model, PROMPTS[2])
    merged(model, peft)
    assert torch.allclose(logprobs(model, PROMPTS[2]), beside, atol=1e-4)
    assert (beside - before).abs().max() > 0.05


def test_parts_that_adapters_cannot_change_are_refused_by_name(tmp_path: Path) -> None:
    """A table for single layers, which an adapter would otherwise change without effect."""
    name = "gemma4, embeddings of layers, keys of others, wider"
    random_model(BY_KIND[name]).save_pretrained(tmp_path / "base")
    sites = sites_of(spec_from_hf(read_config(tmp_path / "base")))
    assert "model.embed_tokens_per_layer" in sites.not_built
    assert "layer_embed" not in sites.sites


def base_of(name: str, path: Path) -> Path:
    random_model({**MORE, **WITH_STATES}[name]).save_pretrained(path / "base")
    return path / "base"


@pytest.mark.parametrize(
    ("name", "rows"),
    [("qwen3_next", (80,)), ("qwen3_5", (56, 24)), ("granite hybrid", (204,))],
)
def test_what_is_stored_in_one_tensor_shares_one_a(
    name: str, rows: tuple[int, ...], tmp_path: Path
) -> None:
    """However its rows are rearranged: else a device would have A once for each head of keys."""
    sites = sites_of(spec_from_hf(read_config(base_of(name, tmp_path)))).sites
    assert sites["layers.0.attn.qkvz"].rows == rows
    assert len(sites["layers.0.attn.rates"].rows) == len(rows)


@pytest.mark.parametrize(
    ("name", "tensor", "shape"),
    [
        ("qwen3_next", "model.layers.0.linear_attn.conv1d.lora_A.weight", (2, 1, 4)),
        ("qwen3_5", "model.layers.0.linear_attn.norm.weight", (6,)),
        ("qwen3_5", "model.layers.0.linear_attn.A_log", (4,)),
        ("bamba", "model.layers.0.mamba.dt_bias", (8,)),
        ("bamba", "model.layers.0.mamba.conv1d.bias", (108,)),
        ("lfm2", "model.layers.0.conv.conv.weight", (96, 1, 3)),
        ("nemotron h", "backbone.layers.5.mixer.experts.lora_A.weight", (16, 32)),
    ],
)
def test_what_is_no_product_of_a_layer_with_a_state_is_refused_by_name(
    name: str, tensor: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    """Convolution, slopes, steps and norms; and experts without a gate."""
    sites = sites_of(spec_from_hf(read_config(base_of(name, tmp_path))))
    config = {"bias": "all", "r": 2, "lora_alpha": 2}
    config["modules_to_save"] = ["conv1d", "norm", "conv.conv"] if "lora_" not in tensor else None
    more = {tensor: torch.ones(shape)}
    if "lora_A" in tensor:
        more[tensor.replace("lora_A", "lora_B")] = torch.ones(8, 2)
    path = Peft({}, {}, config=config, more=more).save(tmp_path / "adapter")
    named = tensor.removesuffix(".weight").removesuffix(".bias").removesuffix(".lora_A")
    with pytest.raises(
        InvalidAdapter, match=re.escape(named) + ".*(not change|is no matrix).*erge"
    ):
        plan_adapter(path, sites, 8)
