"""Tiny configs of families in which some layers keep a state."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig
from transformers.models.lfm2 import Lfm2Config
from transformers.models.lfm2_moe import Lfm2MoeConfig

from tests.parity.families import LINEAR
from tests.parity.more_families import BY_HIDDEN, EXPERTS

CONVOLVING: dict[str, Any] = {
    **{key: value for key, value in BY_HIDDEN.items() if key != "rms_norm_eps"},
    "num_hidden_layers": 5,
    "initializer_range": 0.1,
    "layer_types": ["conv", "full_attention", "conv", "conv", "full_attention"],
    "pad_token_id": 0,
}
UNNAMED = {key: value for key, value in CONVOLVING.items() if key != "layer_types"}
WITH_STATES: dict[str, PretrainedConfig] = {
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
}
