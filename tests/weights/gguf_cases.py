"""Models of later_families.py as GGUF files: what GGUF calls each, the model, and what its metadata
say."""

from __future__ import annotations

import math
from typing import Any

from transformers import PretrainedConfig
from transformers.models.granitemoehybrid import GraniteMoeHybridConfig
from transformers.models.llama4 import Llama4TextConfig
from transformers.models.nemotron_h import NemotronHConfig
from transformers.models.olmo import OlmoConfig
from transformers.models.phimoe import PhimoeConfig

from tests.parity.families_by_kind import BY_KIND
from tests.parity.families_with_states import GRANITE, NEMOTRON, WITH_STATES
from tests.parity.later_families import LATER, NORMED
from tests.parity.newest_families import LLAMA4, NEWEST, PHIMOE
from tests.parity.older_families import OLDER

RMS = {"attention.layer_norm_rms_epsilon": 1e-5, "attention.head_count_kv": 2}
WIDE = {"attention.key_length": 16, "attention.value_length": 16}
LAYER = {"attention.layer_norm_epsilon": 1e-5, "attention.head_count_kv": 2}
FEED = {"feed_forward_length": 80}
THETA = {"rope.freq_base": 10000.0}
EIGHT = {"expert_count": 8, "expert_used_count": 3}
GRANITE_HYBRID: dict[str, Any] = {
    **(RMS | FEED),
    "attention.head_count_kv": [0, 6, 0, 0, 6],
    "attention.scale": 0.3,
    "embedding_scale": 3.0,
    "residual_scale": 0.7,
    "logit_scale": 2.5,
    "expert_shared_feed_forward_length": 40,
    "ssm.conv_kernel": 4,
    "ssm.state_size": 3,
    "ssm.group_count": 2,
    "ssm.time_step_rank": 8,
    "ssm.inner_size": 96,
}
NEMOTRON_H: dict[str, Any] = {
    **WIDE,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.scaling.finetuned": False,
    "ssm.conv_kernel": 4,
    "ssm.state_size": 3,
    "ssm.group_count": 2,
    "ssm.time_step_rank": 8,
    "ssm.inner_size": 80,
}
NOTHING_BESIDE_STATES: dict[str, Any] = {
    "context_length": 1 << 20,
    "attention.head_count": 0,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "feed_forward_length": 0,
    "ssm.state_size": 3,
    "ssm.time_step_rank": 8,
    "ssm.inner_size": 32,
}
# Of the shares 0.8, 0, 0.3, 0, 0.95 and 0, in float32 as files have them.
CUTOFFS = [0.8416212, -math.inf, -0.5244005, -math.inf, 1.6448536, -math.inf]
LATER_CASES: dict[str, tuple[str, PretrainedConfig, dict[str, Any]]] = {
    "gemma3n": (
        "gemma3n",
        BY_KIND["gemma3n"],
        {
            **(RMS | WIDE),
            "feed_forward_length": [80] * 6,
            "rope.freq_base": 1e6,
            "attention.sliding_window": 9,
            "attention.sliding_window_pattern": [True, True, False] * 2,
            "attention.shared_kv_layers": 3,
            "altup.active_idx": 0,
            "altup.num_inputs": 4,
            "embedding_length_per_layer_input": 12,
            "activation_sparsity_scale": CUTOFFS,
        },
    ),
    "ernie4_5": (
        "ernie4_5",
        LATER["ernie4_5"],
        RMS | FEED | WIDE | {"rope.freq_base": 500000.0},
    ),
    "ernie4_5 moe": (
        "ernie4_5-moe",
        LATER["ernie4_5 moe"],
        {
            **(RMS | FEED | EIGHT),
            "rope.freq_base": 500000.0,
            "interleave_moe_layer_step": 1,
            "leading_dense_block_count": 1,
            "expert_feed_forward_length": 32,
            "expert_shared_count": 2,
            "expert_shared_feed_forward_length": 40,
        },
    ),
    "seed_oss": ("seed_oss", LATER["seed_oss"], RMS | FEED | WIDE),
    "dots1": (
        "dots1",
        LATER["dots1"],
        {
            **(RMS | FEED | EIGHT),
            "expert_feed_forward_length": 32,
            "expert_shared_count": 2,
            "leading_dense_block_count": 1,
            "expert_gating_func": 2,
            "expert_weights_scale": 1.7,
        },
    ),
    "minimax_m2": (
        "minimax-m2",
        LATER["minimax_m2"],
        {
            **(RMS | FEED | WIDE | EIGHT),
            "expert_feed_forward_length": 80,
            "rope.freq_base": 5e6,
            "rope.dimension_count": 8,
        },
    ),
    "solar_open": (
        "glm4moe",
        LATER["solar_open"],
        {
            **(RMS | WIDE | EIGHT),
            "feed_forward_length": 80,
            "rope.freq_base": 1e6,
            "expert_feed_forward_length": 32,
            "expert_shared_count": 2,
            "leading_dense_block_count": 0,
            "expert_gating_func": 2,
            "expert_weights_scale": 1.7,
            "expert_weights_norm": True,
        },
    ),
    "exaone4": (
        "exaone4",
        LATER["exaone4, other layers, tied"],
        {
            **(RMS | FEED | THETA),
            "attention.sliding_window": 7,
            "attention.sliding_window_pattern": [True, False, True, False],
        },
    ),
    "exaone4, no windows": (  # 1.2B
        "exaone4",
        LATER["exaone4, no windows"],
        RMS | FEED | THETA | {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    ),
    "phi": ("phi2", LATER["phi"], LAYER | FEED | {"rope.dimension_count": 8}),
    "nemotron": (
        "nemotron",
        LATER["nemotron"],
        LAYER | FEED | {"rope.dimension_count": 8, "rope.scaling.type": "none"},
    ),
    "arcee": ("arcee", LATER["arcee, every bias, tied"], RMS | FEED | THETA),
    "granite moe, shared": (
        "granitemoe",
        LATER["granite moe, shared"],
        {
            **(RMS | FEED | EIGHT),
            "attention.scale": 0.25,
            "embedding_scale": 3.0,
            "residual_scale": 0.75,
            "logit_scale": 2.5,
            "expert_shared_feed_forward_length": 40,
        },
    ),
    "gpt_bigcode": (
        "starcoder",
        LATER["gpt_bigcode"],
        LAYER | {"attention.head_count_kv": 1, "feed_forward_length": 384},
    ),
    "hunyuan dense": ("hunyuan-dense", LATER["hunyuan dense"], RMS | FEED | WIDE | THETA),
    "hunyuan moe": (
        "hunyuan-moe",
        LATER["hunyuan moe"],
        {
            **(RMS | FEED | WIDE | EIGHT | THETA),
            "expert_feed_forward_length": 80,
            "expert_shared_count": 1,
            "expert_shared_feed_forward_length": 80,
        },
    ),
    "granite hybrid": (
        "granitehybrid",
        WITH_STATES["granite hybrid"],
        GRANITE_HYBRID | {"rope.scaling.finetuned": False},
    ),
    "granite hybrid, experts": (
        "granitehybrid",
        GraniteMoeHybridConfig(
            **GRANITE,
            num_local_experts=8,
            num_experts_per_tok=3,
            mamba_conv_bias=False,
            position_embedding_type="rope",
        ),
        GRANITE_HYBRID | EIGHT | THETA | {"rope.scaling.finetuned": True},
    ),
    "nemotron h": (
        "nemotron_h",
        NemotronHConfig(**NEMOTRON, hybrid_override_pattern="M-MM*-*M-", mlp_bias=True),
        {
            **NEMOTRON_H,
            "attention.head_count_kv": [0, 0, 0, 0, 6, 0, 6, 0, 0],
            "feed_forward_length": [0, 80, 0, 0, 0, 80, 0, 0, 80],
        },
    ),
    "nemotron h, experts": (
        "nemotron_h_moe",
        NemotronHConfig(**NEMOTRON, hybrid_override_pattern="MEM*EM", use_conv_bias=False),
        {
            **(NEMOTRON_H | EIGHT),
            "attention.head_count_kv": [0, 0, 0, 6, 0, 0],
            "feed_forward_length": [0, 32, 0, 0, 32, 0],
            "expert_feed_forward_length": 32,
            "expert_shared_feed_forward_length": 40,
            "expert_shared_count": 1,
            "expert_weights_norm": True,
            "expert_weights_scale": 1.7,
            "expert_group_count": 1,
        },
    ),
    "mamba2": (
        "mamba2",
        WITH_STATES["mamba2"],
        {
            **NOTHING_BESIDE_STATES,
            "ssm.conv_kernel": 4,
            "ssm.group_count": 2,
        },
    ),
    "mamba2, one group, tied": (
        "mamba2",
        WITH_STATES["mamba2, every bias, one group, narrow, tied"],
        {
            **NOTHING_BESIDE_STATES,
            "attention.layer_norm_rms_epsilon": 1e-3,
            "ssm.conv_kernel": 3,
            "ssm.group_count": 1,
        },
    ),
    "olmo": ("olmo", LATER["olmo"], LAYER | FEED | THETA),
    "olmo, clipped": (
        "olmo",
        OlmoConfig(**NORMED, clip_qkv=0.5),
        LAYER | FEED | THETA | {"attention.clamp_kqv": 0.5},
    ),
    "exaone_moe": (
        "exaone-moe",
        LATER["exaone_moe"],
        {
            **(RMS | FEED | EIGHT | THETA),
            "attention.sliding_window": 9,
            "attention.sliding_window_pattern": [True, True, True, False, True],
            "expert_feed_forward_length": 32,
            "expert_shared_count": 2,
            "expert_shared_feed_forward_length": 64,
            "leading_dense_block_count": 1,
            "expert_weights_scale": 2.5,
            "expert_weights_norm": True,
        },
    ),
    "phimoe": (
        "phimoe",
        PhimoeConfig(**PHIMOE, attention_bias=True, lm_head_bias=True),
        RMS | FEED | {"expert_count": 8, "expert_used_count": 2, "rope.freq_base": 1e6},
    ),
    "dbrx": (
        "dbrx",
        OLDER["dbrx"],
        {
            **(LAYER | EIGHT | THETA),
            "feed_forward_length": 32,
            "attention.clamp_kqv": 0.5,
        },
    ),
    "jais2": ("jais2", NEWEST["jais2"], LAYER | FEED | THETA),
    "afmoe": (
        "afmoe",
        NEWEST["afmoe"],
        {
            **(RMS | FEED | WIDE | EIGHT | THETA),
            "attention.sliding_window": 9,
            "expert_feed_forward_length": 32,
            "expert_shared_count": 2,
            "leading_dense_block_count": 1,
            "expert_gating_func": 2,
            "expert_weights_scale": 1.0,
            "expert_weights_norm": True,
        },
    ),
    "llama4": (
        "llama4",
        Llama4TextConfig(
            **{**LLAMA4, "attention_chunk_size": 8192, "floor_scale": 8192},
            interleave_moe_layer_step=2,
        ),
        {
            **(RMS | WIDE),
            "feed_forward_length": 72,
            "expert_feed_forward_length": 32,
            "expert_count": 8,
            "expert_used_count": 1,
            "interleave_moe_layer_step": 2,
            "rope.freq_base": 500000.0,
        },
    ),
}
