"""Tiny configs of families that came after those of more_families.py."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig
from transformers.models.ernie4_5 import Ernie4_5Config
from transformers.models.ernie4_5_moe import Ernie4_5_MoeConfig
from transformers.models.seed_oss import SeedOssConfig

from tests.parity.families import LINEAR, SIZES, YARN
from tests.parity.more_families import BY_HIDDEN

ERNIE_EXPERTS: dict[str, Any] = {
    **BY_HIDDEN,
    "moe_num_experts": 8,
    "moe_k": 3,
    "moe_intermediate_size": 32,
}
LATER: dict[str, PretrainedConfig] = {
    "ernie4_5": Ernie4_5Config(**SIZES),
    "ernie4_5, every bias, untied, linear rope": Ernie4_5Config(
        **SIZES, use_bias=True, tie_word_embeddings=False, rope_parameters=LINEAR
    ),
    "ernie4_5 moe": Ernie4_5_MoeConfig(**ERNIE_EXPERTS),
    "ernie4_5 moe, every bias, some layers, none shared, untied": Ernie4_5_MoeConfig(
        **{**ERNIE_EXPERTS, "num_hidden_layers": 6},
        use_bias=True,
        moe_num_shared_experts=0,
        moe_layer_start_index=0,
        moe_layer_end_index=3,
        moe_layer_interval=2,
        tie_word_embeddings=False,
    ),
    "ernie4_5 moe, every bias, shared": Ernie4_5_MoeConfig(
        **ERNIE_EXPERTS, use_bias=True, moe_num_shared_experts=1
    ),
    "seed_oss": SeedOssConfig(**SIZES),
    "seed_oss, other biases, tied, yarn": SeedOssConfig(
        **SIZES,
        attention_bias=False,
        attention_out_bias=True,
        mlp_bias=True,
        tie_word_embeddings=True,
        rope_parameters=YARN,
    ),
}
