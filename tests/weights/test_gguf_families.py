"""GGUF files of every family that has them are the models that directories are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PretrainedConfig
from transformers.models.cohere import CohereConfig
from transformers.models.cohere2 import Cohere2Config
from transformers.models.deepseek_v2 import DeepseekV2Config
from transformers.models.deepseek_v3 import DeepseekV3Config
from transformers.models.falcon import FalconConfig
from transformers.models.gemma import GemmaConfig
from transformers.models.gemma2 import Gemma2Config
from transformers.models.gemma4 import Gemma4TextConfig
from transformers.models.glm4 import Glm4Config
from transformers.models.glm4_moe import Glm4MoeConfig
from transformers.models.gpt2 import GPT2Config
from transformers.models.gpt_neox import GPTNeoXConfig
from transformers.models.gpt_oss import GptOssConfig
from transformers.models.granite import GraniteConfig
from transformers.models.granitemoe import GraniteMoeConfig
from transformers.models.lfm2 import Lfm2Config
from transformers.models.lfm2_moe import Lfm2MoeConfig
from transformers.models.ministral3 import Ministral3Config
from transformers.models.mixtral import MixtralConfig
from transformers.models.olmo2 import Olmo2Config
from transformers.models.olmo3 import Olmo3Config
from transformers.models.olmoe import OlmoeConfig
from transformers.models.qwen2_moe import Qwen2MoeConfig
from transformers.models.qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5_moe import Qwen3_5MoeTextConfig
from transformers.models.qwen3_moe import Qwen3MoeConfig
from transformers.models.qwen3_next import Qwen3NextConfig
from transformers.models.smollm3 import SmolLM3Config
from transformers.models.stablelm import StableLmConfig
from transformers.models.starcoder2 import Starcoder2Config

from quire.errors import CorruptModel
from quire.families.registry import BY_MODEL_TYPE, FAMILIES
from quire.layer_parts.state import DeltaNetPlan
from quire.layer_plan import NormPlan
from quire.spec import ModelSpec
from quire.weights.gguf_config import spec_from_gguf
from quire.weights.gguf_file import GgufFile
from quire.weights.hf_config import read_config, spec_from_hf
from quire.weights.load import load_weights
from quire.weights.source import locate
from tests.models.plan_oracle import PlanOracle
from tests.parity.families import YARN
from tests.parity.families_by_kind import BY_KIND, GEMMA4
from tests.parity.families_with_states import CONVOLVING
from tests.parity.more_families import (
    BY_HIDDEN,
    EXPERTS,
    FALCON,
    GEMMA2,
    GPT2,
    GPT_OSS,
    GROWING,
    HYBRID,
    HYBRID_EXPERTS,
    LATENT,
    NEOX,
    ROUTED,
    SIZES,
    random_model,
)
from tests.weights.gguf_cases import EIGHT, FEED, LATER_CASES, LAYER, RMS, THETA, WIDE

FACTORS: dict[str, Any] = {
    "attention_multiplier": 0.25,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.75,
    "logits_scaling": 2.5,
}
GRANITE = {"attention.scale": 0.25, "embedding_scale": 3.0, "residual_scale": 0.75}
GRANITE |= {"logit_scale": 2.5}
HYBRID_STATE = DeltaNetPlan(4, 2, 8, 6, 4, NormPlan(1e-5))
STRETCHED = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 32,
}
DEEPSEEK = {
    **(RMS | FEED | {"attention.head_count_kv": 1}),
    "attention.q_lora_rank": 20,
    "attention.kv_lora_rank": 24,
    "attention.key_length": 32,
    "attention.value_length": 24,
    "attention.key_length_mla": 20,
    "attention.value_length_mla": 10,
    "rope.dimension_count": 8,
}
BY_KINDS = {
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.key_length": 32,
    "attention.value_length": 32,
    "attention.key_length_swa": 16,
    "attention.value_length_swa": 16,
    "attention.sliding_window": 9,
    "attention.sliding_window_pattern": [True, True, False] * 2,
    "attention.shared_kv_layers": 0,
    "embedding_length_per_layer_input": 0,
    "rope.dimension_count": 32,
    "rope.dimension_count_swa": 16,
    "rope.freq_base": 1e6,
    "rope.freq_base_swa": 1e4,
}
ROUTING = {
    "expert_count": 12,
    "expert_used_count": 3,
    "expert_feed_forward_length": 32,
    "expert_shared_count": 2,
    "leading_dense_block_count": 1,
    "expert_weights_scale": 1.7,
    "expert_group_count": 4,
    "expert_group_used_count": 2,
}
GLM4_MOE = {
    **(RMS | FEED | WIDE | EIGHT),
    "rope.dimension_count": 8,
    "expert_feed_forward_length": 32,
    "expert_shared_count": 2,
    "leading_dense_block_count": 1,
    "expert_gating_func": 2,
    "expert_weights_scale": 1.7,
    "expert_weights_norm": True,
}
# As many key heads as value heads, which GGUF files have in the order of directories.
PAIRED = {**HYBRID, "linear_num_key_heads": 4}
SSM = {
    "ssm.conv_kernel": 4,
    "ssm.state_size": 8,
    "ssm.group_count": 4,
    "ssm.time_step_rank": 4,
    "ssm.inner_size": 24,
    "full_attention_interval": 3,
    "rope.dimension_count": 8,
    "attention.key_length": 32,
    "attention.value_length": 32,
}
CONVOLVED = {
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.head_count_kv": [0, 2, 0, 0, 2],
    "rope.freq_base": 1e6,
    "shortconv.l_cache": 3,
}
SHARED = {"expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 40}
# What GGUF calls it, the model, and what its metadata say.
CASES: dict[str, tuple[str, PretrainedConfig, dict[str, Any]]] = {
    "granite": ("granite", GraniteConfig(**BY_HIDDEN, **FACTORS), RMS | FEED | GRANITE),
    "granite moe": (
        "granitemoe",
        GraniteMoeConfig(**BY_HIDDEN, **FACTORS, num_local_experts=8, num_experts_per_tok=3),
        RMS | FEED | GRANITE | EIGHT,
    ),
    "olmo2": ("olmo2", Olmo2Config(**BY_HIDDEN), RMS | FEED | THETA),
    "olmo3": (
        "olmo2",
        Olmo3Config(
            **{**BY_HIDDEN, "num_hidden_layers": 5},
            sliding_window=9,
            rope_parameters={
                "full_attention": YARN,
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        ),
        {
            **(RMS | FEED | THETA | STRETCHED),
            "attention.sliding_window": 9,
            "attention.sliding_window_pattern": [True, True, True, False, True],
        },
    ),
    "smollm3": (
        "smollm3",
        SmolLM3Config(**{**BY_HIDDEN, "num_hidden_layers": 5, "pad_token_id": 0}),
        RMS | FEED | {"rope.freq_base": 2000000.0},
    ),
    "glm4": (
        "glm4",
        Glm4Config(**SIZES, pad_token_id=0),
        RMS | FEED | WIDE | {"rope.dimension_count": 8},
    ),
    "glm4, no bias": (  # 32B
        "glm4",
        Glm4Config(**SIZES, pad_token_id=0, attention_bias=False),
        RMS | FEED | WIDE | {"rope.dimension_count": 8},
    ),
    "glm4 moe": ("glm4moe", Glm4MoeConfig(**SIZES, **ROUTED, use_qk_norm=False), GLM4_MOE),
    "glm4 moe, q and k normed": (  # 4.5 and 4.6, but for Air
        "glm4moe",
        Glm4MoeConfig(**SIZES, **ROUTED, use_qk_norm=True, attention_bias=True),
        GLM4_MOE,
    ),
    "deepseek v2, groups, yarn": (
        "deepseek2",
        DeepseekV2Config(
            **LATENT,
            topk_method="group_limited_greedy",
            n_group=4,
            topk_group=2,
            rope_parameters={**YARN, "mscale": 0.7, "mscale_all_dim": 0.7},
        ),
        DEEPSEEK | ROUTING | STRETCHED | {"rope.scaling.yarn_log_multiplier": 0.07},
    ),
    "deepseek v3, no rank": (
        "deepseek2",
        DeepseekV3Config(**{**LATENT, "q_lora_rank": None}, n_group=4, topk_group=2),
        {
            **{key: value for key, value in DEEPSEEK.items() if "q_lora" not in key},
            # That scores are made by sigmoids is not said: experts have a bias.
            **(ROUTING | {"expert_weights_norm": True}),
        },
    ),
    "deepseek v3, not renormalised": (
        "deepseek2",
        DeepseekV3Config(**LATENT, n_group=4, topk_group=2, norm_topk_prob=False),
        DEEPSEEK | ROUTING,
    ),
    "cohere": (
        "command-r",
        CohereConfig(**BY_HIDDEN, logit_scale=0.25),
        LAYER | FEED | {"logit_scale": 0.25, "rope.freq_base": 500000.0},
    ),
    "cohere2": (
        "cohere2",
        Cohere2Config(**{**BY_HIDDEN, "num_hidden_layers": 5}, sliding_window=9, logit_scale=0.5),
        LAYER | FEED | {"logit_scale": 0.5, "attention.sliding_window": 9},
    ),
    "stablelm": (
        "stablelm",
        StableLmConfig(**BY_HIDDEN, use_qkv_bias=True),
        LAYER | FEED | {"rope.dimension_count": 4, "use_parallel_residual": False},
    ),
    "starcoder2": ("starcoder2", Starcoder2Config(**BY_HIDDEN), LAYER | FEED),
    "gpt2": (
        "gpt2",
        GPT2Config(**GPT2),
        {"attention.layer_norm_epsilon": 1e-5, "feed_forward_length": 384},
    ),
    "gpt neox": (
        "gptneox",
        GPTNeoXConfig(**NEOX),
        {
            "attention.layer_norm_epsilon": 1e-5,
            "use_parallel_residual": True,
            "rope.dimension_count": 4,
            **FEED,
        },
    ),
    "falcon": (
        "falcon",
        FalconConfig(**FALCON),
        LAYER | {"attention.head_count_kv": 1, "feed_forward_length": 384},
    ),
    "falcon, newer": (
        "falcon",
        FalconConfig(**FALCON, new_decoder_architecture=True, num_kv_heads=2),
        LAYER | {"feed_forward_length": 384, "tensor_data_layout": "jploski"},
    ),
    "falcon, newer, one norm": (  # Falcon 2
        "falcon",
        FalconConfig(
            **FALCON, new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1
        ),
        LAYER | {"feed_forward_length": 384},
    ),
    "qwen2 moe": (
        "qwen2moe",
        Qwen2MoeConfig(**BY_HIDDEN, **EXPERTS, shared_expert_intermediate_size=48),
        {
            **(RMS | FEED | EIGHT),
            "expert_feed_forward_length": 32,
            "expert_shared_feed_forward_length": 48,
        },
    ),
    "qwen3 moe": (
        "qwen3moe",
        Qwen3MoeConfig(**SIZES, **EXPERTS, norm_topk_prob=True),
        RMS | FEED | WIDE | EIGHT | {"expert_feed_forward_length": 32},
    ),
    "qwen3 next": (
        "qwen3next",
        Qwen3NextConfig(**HYBRID, **HYBRID_EXPERTS),
        RMS | FEED | EIGHT | SSM | SHARED | {"ssm.group_count": 2},
    ),
    "qwen3.5": ("qwen35", Qwen3_5TextConfig(**PAIRED), RMS | FEED | SSM),
    "qwen3.5 moe": (
        "qwen35moe",
        Qwen3_5MoeTextConfig(
            **{key: value for key, value in PAIRED.items() if key != "intermediate_size"},
            **HYBRID_EXPERTS,
        ),
        RMS | EIGHT | SSM | SHARED | {"rope.dimension_sections": [2, 1, 1, 0]},
    ),
    "ministral3": (
        "mistral3",
        Ministral3Config(**SIZES, rope_parameters={**GROWING, "mscale_all_dim": 0.4}),
        {
            **(RMS | FEED | WIDE | THETA | STRETCHED),
            "attention.temperature_scale": 0.3,
            "rope.scaling.yarn_log_multiplier": 0.4,
        },
    ),
    "ministral3, plain positions": (  # of Mistral Small 3.1, which has this name, too
        "mistral3",
        Ministral3Config(**SIZES, rope_parameters={"rope_type": "default", "rope_theta": 5e4}),
        RMS | FEED | WIDE | {"rope.freq_base": 5e4},
    ),
    "mixtral": (
        "llama",
        MixtralConfig(**SIZES, num_local_experts=8, num_experts_per_tok=3),
        RMS | FEED | WIDE | EIGHT | {"rope.freq_base": 1000000.0},
    ),
    "olmoe": (
        "olmoe",
        OlmoeConfig(**BY_HIDDEN, num_experts=8, num_experts_per_tok=3),
        RMS | FEED | EIGHT,
    ),
    "gemma": ("gemma", GemmaConfig(**SIZES), RMS | FEED | WIDE),
    "gemma2": (
        "gemma2",
        Gemma2Config(**{**GEMMA2, "query_pre_attn_scalar": 16}),
        {
            **(RMS | FEED | WIDE),
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 5.0,
            "attention.sliding_window": 9,
        },
    ),
    "gemma4, values are keys": (
        "gemma4",
        BY_KIND["gemma4, values are keys"],
        BY_KINDS | FEED | {"attention.head_count_kv": [6, 6, 1] * 2},
    ),
    "gemma4, embeddings of layers, keys of others, wider": (
        "gemma4",
        BY_KIND["gemma4, embeddings of layers, keys of others, wider"],
        {
            **BY_KINDS,
            "attention.head_count_kv": 1,
            "attention.shared_kv_layers": 3,
            "feed_forward_length": [80, 80, 80, 160, 160, 160],
            "embedding_length_per_layer_input": 12,
            "final_logit_softcapping": 5.0,
        },
    ),
    "lfm2": (
        "lfm2",
        Lfm2Config(**CONVOLVING, block_auto_adjust_ff_dim=False),
        CONVOLVED | FEED,
    ),
    "lfm2 moe": (
        "lfm2moe",
        Lfm2MoeConfig(**CONVOLVING, **EXPERTS, routed_scaling_factor=1.7),
        {
            **(CONVOLVED | FEED | EIGHT),
            "expert_feed_forward_length": 32,
            "leading_dense_block_count": 2,
            "expert_gating_func": 2,
            "expert_weights_scale": 1.7,
        },
    ),
    "gpt oss": (
        "gpt-oss",
        GptOssConfig(**GPT_OSS),
        {
            **(RMS | FEED | WIDE | EIGHT | STRETCHED),
            "expert_feed_forward_length": 80,
            "attention.sliding_window": 9,
        },
    ),
    **LATER_CASES,
}


# Their files have the name of another family, which means the same there.
READ_AS = {"solar_open": "glm4_moe"}


@pytest.mark.parametrize("name", CASES)
def test_a_gguf_file_is_the_model_of_its_directory(name: str, tmp_path: Path) -> None:
    from tests.weights.gguf_families import write

    arch, config, said = CASES[name]
    random_model(config).save_pretrained(tmp_path)
    spec = spec_from_hf(read_config(tmp_path))
    write(tmp_path, tmp_path / "m.gguf", config, arch, said)
    other = spec_from_gguf(GgufFile(tmp_path / "m.gguf"))
    left: dict[str, Any] = {"eos_ids": (), "bos_id": None, "dtype": "float32"}
    left |= {"max_model_len": spec.max_model_len, "family": spec.family}
    assert other.family == READ_AS.get(name, spec.family)
    assert replace(other, **left) == replace(spec, **left)
    wanted, found = weights(tmp_path, spec), weights(tmp_path / "m.gguf", other)
    assert found.keys() == wanted.keys()
    for key, tensor in wanted.items():
        assert torch.allclose(found[key], tensor, rtol=0, atol=1e-6), key


@pytest.mark.parametrize(("how", "case"), [("fused", "qwen3 next"), ("alone", "mixtral")])
def test_experts_that_are_not_stacked_one_kind_by_one(how: str, case: str, tmp_path: Path) -> None:
    """Gates and ups as one tensor, where a converter was asked to; each by itself, before 2024."""
    from tests.weights.gguf_families import write

    arch, config, said = CASES[case]
    random_model(config).save_pretrained(tmp_path)
    made = {}
    for path, options in ((tmp_path / "usual.gguf", {}), (tmp_path / "other.gguf", {how: True})):
        write(tmp_path, path, config, arch, said, **options)
        made[path.stem] = weights(path, spec_from_gguf(GgufFile(path)))
    assert "blk.0.ffn_gate_exps.weight" not in GgufFile(path).tensors
    assert all(torch.equal(made["other"][key], tensor) for key, tensor in made["usual"].items())


def test_heads_that_a_gguf_file_has_in_turn(tmp_path: Path) -> None:
    """Two heads of v for each of k: another order, and the same logits."""
    from tests.weights.gguf_families import write

    config = Qwen3_5TextConfig(**HYBRID)
    random_model(config).save_pretrained(tmp_path)
    spec, path = spec_from_hf(read_config(tmp_path)), tmp_path / "m.gguf"
    write(tmp_path, path, config, "qwen35", RMS | FEED | SSM | {"ssm.group_count": 2})
    other = spec_from_gguf(GgufFile(path))
    assert other.layers[0].state == replace(HYBRID_STATE, in_turn=True) != spec.layers[0].state
    text = [5 * i % 96 for i in range(20)]
    wanted = PlanOracle(spec, weights(tmp_path, spec)).logits(text)
    found = PlanOracle(other, weights(path, other)).logits(text)
    assert torch.allclose(found, wanted, atol=1e-5)


def test_factors_of_experts_are_scales_in_a_gguf_file(tmp_path: Path) -> None:
    """Other weights, and the same logits."""
    from tests.weights.gguf_families import write

    sizes = {"num_experts": 8, "top_k_experts": 3, "moe_intermediate_size": 32}
    config = Gemma4TextConfig(**GEMMA4, enable_moe_block=True, **sizes)
    random_model(config).save_pretrained(tmp_path)
    spec, path = spec_from_hf(read_config(tmp_path)), tmp_path / "m.gguf"
    said = {"attention.head_count_kv": 2, "expert_feed_forward_length": 32}
    write(tmp_path, path, config, "gemma4", BY_KINDS | FEED | EIGHT | said)
    other, text = spec_from_gguf(GgufFile(path)), [5 * i % 96 for i in range(20)]
    wanted = PlanOracle(spec, weights(tmp_path, spec)).logits(text)
    found = PlanOracle(other, weights(path, other)).logits(text)
    assert torch.allclose(found, wanted, atol=1e-5)


def test_heads_of_gemma_4_without_pairs_are_refused_by_key(tmp_path: Path) -> None:
    from tests.weights.gguf_families import write

    arch, config, said = CASES["gemma4, values are keys"]
    random_model(config).save_pretrained(tmp_path)
    write(tmp_path, path := tmp_path / "m.gguf", config, arch, said | {"attention.key_length": 1})
    with pytest.raises(CorruptModel, match="attention.key_length must be even"):
        spec_from_gguf(GgufFile(path))


@pytest.mark.parametrize("said", [None, 1.5, [1, 2]])
def test_cutoffs_of_gemma_3n_are_a_number_for_each_layer(said: Any, tmp_path: Path) -> None:
    from tests.weights.gguf_families import write

    arch, config, usual = CASES["gemma3n"]
    random_model(config).save_pretrained(tmp_path)
    key = "activation_sparsity_scale"
    usual = {name: value for name, value in usual.items() if name != key}
    more = {} if said is None else {key: said}
    write(tmp_path, path := tmp_path / "m.gguf", config, arch, usual | more)
    with pytest.raises(CorruptModel, match=f"{key} must be a list of numbers"):
        spec_from_gguf(GgufFile(path))


def weights(path: Path, spec: ModelSpec) -> dict[str, torch.Tensor]:
    return load_weights(locate(path), spec, dtype=torch.float32, device="cpu")


def test_every_family_with_a_name_in_gguf_is_here() -> None:
    """Or among the six of tests/weights/test_load.py."""
    there = {"llama", "mistral", "qwen2", "qwen3", "phi3", "gemma3"}
    named = {family.name for family in FAMILIES if family.gguf is not None} - there
    named |= {"deepseek_v2", *READ_AS}  # the former under the name of the version behind it
    found = {config.model_type.removesuffix("_text") for _, config, _ in CASES.values()}
    assert {BY_MODEL_TYPE[kind].name for kind in found} == named
