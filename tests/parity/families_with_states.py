"""Tiny configs of families in which some layers keep a state."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pytest
from transformers import PretrainedConfig
from transformers.models.bamba import BambaConfig
from transformers.models.bamba.modeling_bamba import BambaRMSNormGated
from transformers.models.falcon_h1 import FalconH1Config
from transformers.models.granitemoehybrid import GraniteMoeHybridConfig
from transformers.models.lfm2 import Lfm2Config
from transformers.models.lfm2_moe import Lfm2MoeConfig
from transformers.models.mamba2 import Mamba2Config
from transformers.models.mamba2.modeling_mamba2 import MambaRMSNormGated
from transformers.models.nemotron_h import NemotronHConfig

from tests.parity.families import LINEAR, known
from tests.parity.more_families import BY_HIDDEN, EXPERTS, ROUTED

CONVOLVING: dict[str, Any] = {
    **{key: value for key, value in BY_HIDDEN.items() if key != "rms_norm_eps"},
    "num_hidden_layers": 5,
    "initializer_range": 0.1,
    "layer_types": ["conv", "full_attention", "conv", "conv", "full_attention"],
    "pad_token_id": 0,
}
UNNAMED = {key: value for key, value in CONVOLVING.items() if key != "layer_types"}
# A state of 612 numbers in a layer, and room for 768 in a block of 4 tokens.
MAMBA: dict[str, Any] = {
    **BY_HIDDEN,
    "num_key_value_heads": 6,
    "num_hidden_layers": 5,
    "initializer_range": 0.1,
    "mamba_n_heads": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 3,
    "mamba_expand": 1,
}
ATTENDING_TWICE = ["linear_attention", "full_attention", "linear_attention"]
ATTENDING_TWICE += ["linear_attention", "full_attention"]
GRANITE: dict[str, Any] = {
    **MAMBA,
    "layer_types": ATTENDING_TWICE,
    "shared_intermediate_size": 40,
    "attention_multiplier": 0.3,
    "residual_multiplier": 0.7,
    "embedding_multiplier": 3.0,
    "logits_scaling": 2.5,
}
NEMOTRON: dict[str, Any] = {
    **{key: value for key, value in MAMBA.items() if not key.startswith(("mamba_", "rms_"))},
    "num_key_value_heads": 6,
    "head_dim": 16,
    "mamba_num_heads": 8,
    "mamba_head_dim": 10,
    "ssm_state_size": 3,
    "n_groups": 2,
    "moe_shared_expert_intermediate_size": 40,
    **ROUTED,
}
del NEMOTRON["num_hidden_layers"], NEMOTRON["first_k_dense_replace"], NEMOTRON["n_shared_experts"]
FALCON_H1: dict[str, Any] = {**MAMBA, "num_hidden_layers": 3, "mamba_d_ssm": 80}
FACTORS: dict[str, Any] = {
    "ssm_multipliers": [0.4, 1.3, 0.7, 1.8, 0.6],
    "mlp_multipliers": [0.6, 1.7],
    "ssm_in_multiplier": 1.4,
    "ssm_out_multiplier": 0.7,
    "attention_in_multiplier": 1.2,
    "attention_out_multiplier": 0.8,
    "key_multiplier": 0.5,
    "embedding_multiplier": 3.0,
    "lm_head_multiplier": 0.4,
}
# A state of 228 numbers in a layer, and room for 256 in a block of 4 tokens.
MAMBA2: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_heads": 8,
    "head_dim": 4,
    "state_size": 3,
    "n_groups": 2,
    "initializer_range": 0.1,
    "pad_token_id": 0,
}
# As many numbers of values as of keys: Transformers saves their convolutions as three equal parts.
OLMO_HYBRID: dict[str, Any] = {
    **BY_HIDDEN,
    "num_key_value_heads": 6,
    "num_hidden_layers": 5,
    "initializer_range": 0.1,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 9,
    "linear_num_value_heads": 6,
    "linear_value_head_dim": 3,
    "pad_token_id": 0,
}
_MADE: dict[str, PretrainedConfig | None] = {
    "lfm2": Lfm2Config(**CONVOLVING, block_auto_adjust_ff_dim=False),
    "lfm2, every bias, reach of 2, untied, width adjusted, linear rope": Lfm2Config(
        **UNNAMED,
        full_attn_idxs=[2],
        conv_bias=True,
        conv_L_cache=2,
        norm_eps=1e-3,
        tie_word_embeddings=False,
        block_multiple_of=24,
        block_ffn_dim_multiplier=1.3,
        rope_parameters=LINEAR,
    ),
    "lfm2 moe": Lfm2MoeConfig(**CONVOLVING, **EXPERTS, routed_scaling_factor=1.7),
    "lfm2 moe, no choice bias, not renormalised, every bias": Lfm2MoeConfig(
        **CONVOLVING,
        **EXPERTS,
        num_dense_layers=0,
        use_expert_bias=False,
        norm_topk_prob=False,
        conv_bias=True,
    ),
    "granite hybrid": GraniteMoeHybridConfig(
        **GRANITE, num_local_experts=0, mamba_d_head="auto", position_embedding_type="nope"
    ),
    "granite hybrid, experts, every bias, rope, untied": GraniteMoeHybridConfig(
        **GRANITE,
        num_local_experts=8,
        num_experts_per_tok=3,
        attention_bias=True,
        mamba_proj_bias=True,
        mamba_conv_bias=False,
        mamba_d_conv=3,
        position_embedding_type="rope",
        tie_word_embeddings=True,
        rope_parameters=LINEAR,
    ),
    "granite hybrid, every layer attends, one kind named as in older files": GraniteMoeHybridConfig(
        **{**GRANITE, "layer_types": ["attention"] * 5}, num_local_experts=0
    ),
    "bamba": BambaConfig(**MAMBA, attn_layer_indices=[1, 4]),
    "bamba, every bias, one group, tied, all turned": BambaConfig(
        **{**MAMBA, "mamba_n_groups": 1},
        attn_layer_indices=[2],
        attention_bias=True,
        mlp_bias=True,
        mamba_proj_bias=True,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 99.0, "partial_rotary_factor": 1.0},
    ),
    "falcon h1": FalconH1Config(**FALCON_H1),
    "falcon h1, factors, normed behind the gate, biases": FalconH1Config(
        **FALCON_H1,
        **FACTORS,
        mamba_rms_norm=True,
        mamba_norm_before_gate=False,
        mlp_bias=True,
        projectors_bias=True,
        mamba_conv_bias=False,
    ),
    "falcon h1, normed before the gate, other biases, tied": FalconH1Config(
        **{**FALCON_H1, "mamba_d_ssm": None},
        mamba_rms_norm=True,
        attention_bias=True,
        mamba_proj_bias=True,
        key_multiplier=0.4,
        tie_word_embeddings=True,
        rope_parameters=LINEAR,
    ),
    "nemotron h": NemotronHConfig(**NEMOTRON, hybrid_override_pattern="M-MM*EM*-M"),
    "nemotron h, every bias, groups of experts, least steps": NemotronHConfig(
        **{**NEMOTRON, "n_routed_experts": 12},
        layers_block_type=["mamba", "moe", "attention", "mlp", "mamba"],
        mlp_bias=True,
        use_bias=True,
        use_conv_bias=False,
        conv_kernel=3,
        layer_norm_epsilon=1e-3,
        time_step_min=0.9,
        n_group=4,
        topk_group=2,
        norm_topk_prob=False,
    ),
    "mamba2": Mamba2Config(**MAMBA2),
    "mamba2, every bias, one group, narrow, tied": Mamba2Config(
        **{**MAMBA2, "n_groups": 1, "hidden_size": 32},
        expand=1,
        conv_kernel=3,
        use_bias=True,
        use_conv_bias=False,
        layer_norm_epsilon=1e-3,
        residual_in_fp32=False,
        time_step_min=0.9,  # how it was trained
        tie_word_embeddings=True,
    ),
    "olmo hybrid": known("OlmoHybridConfig", **OLMO_HYBRID),
    "olmo hybrid, no rope, rates up to 1, every bias, tied": known(
        "OlmoHybridConfig",
        **{**OLMO_HYBRID, "num_hidden_layers": 3},
        linear_allow_neg_eigval=False,
        linear_conv_kernel_dim=3,
        attention_bias=True,
        tie_word_embeddings=True,
        rope_parameters={"rope_theta": None, "rope_type": "default"},
    ),
}
WITH_STATES = {name: config for name, config in _MADE.items() if config is not None}

_NORMED_BY_GROUP: dict[str, type] = {
    "bamba": BambaRMSNormGated,
    "granite hybrid": BambaRMSNormGated,
    "granite hybrid, experts, every bias, rope, untied": BambaRMSNormGated,
    "mamba2": MambaRMSNormGated,
}


def skip_if_normed_together(name: str) -> None:
    """Older versions of Transformers norm all groups of a layer's heads together."""
    norm = _NORMED_BY_GROUP.get(name)
    if norm is not None and "group_size" not in signature(norm).parameters:
        pytest.skip("this version of Transformers norms all groups of heads together")
