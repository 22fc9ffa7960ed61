"""Tiny configs of families that came after those of more_families.py."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig
from transformers.models.apertus import ApertusConfig
from transformers.models.arcee import ArceeConfig
from transformers.models.cwm import CwmConfig
from transformers.models.dots1 import Dots1Config
from transformers.models.ernie4_5 import Ernie4_5Config
from transformers.models.ernie4_5_moe import Ernie4_5_MoeConfig
from transformers.models.exaone4 import Exaone4Config
from transformers.models.exaone_moe import ExaoneMoeConfig
from transformers.models.flex_olmo import FlexOlmoConfig
from transformers.models.gpt_bigcode import GPTBigCodeConfig
from transformers.models.granitemoeshared import GraniteMoeSharedConfig
from transformers.models.helium import HeliumConfig
from transformers.models.hunyuan_v1_dense import HunYuanDenseV1Config
from transformers.models.hunyuan_v1_moe import HunYuanMoEV1Config
from transformers.models.hyperclovax import HyperCLOVAXConfig
from transformers.models.minimax_m2 import MiniMaxM2Config
from transformers.models.nemotron import NemotronConfig
from transformers.models.olmo import OlmoConfig
from transformers.models.olmoe import OlmoeConfig
from transformers.models.phi import PhiConfig
from transformers.models.seed_oss import SeedOssConfig
from transformers.models.solar_open import SolarOpenConfig

from tests.parity.families import LINEAR, LLAMA3, SIZES, YARN
from tests.parity.more_families import (
    BY_HIDDEN,
    EXPERTS,
    GPT2,
    ROUTED,
)

ERNIE_EXPERTS: dict[str, Any] = {
    **BY_HIDDEN,
    "moe_num_experts": 8,
    "moe_k": 3,
    "moe_intermediate_size": 32,
}
EXAONE_MOE: dict[str, Any] = {
    **BY_HIDDEN,
    **EXPERTS,
    "num_hidden_layers": 5,
    "num_shared_experts": 2,
    "sliding_window": 9,
}
MINIMAX: dict[str, Any] = {**SIZES, "num_local_experts": 8, "num_experts_per_tok": 3}
SOLAR: dict[str, Any] = {**SIZES, **ROUTED}
del SOLAR["intermediate_size"], SOLAR["first_k_dense_replace"]
FACTORS: dict[str, Any] = {
    "attention_multiplier": 0.25,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.75,
    "logits_scaling": 2.5,
}
NORMED = {key: value for key, value in BY_HIDDEN.items() if key != "rms_norm_eps"}
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
    "dots1": Dots1Config(**BY_HIDDEN, **ROUTED),
    "dots1, groups, renormalised, windows, every bias, tied": Dots1Config(
        **{**BY_HIDDEN, "num_hidden_layers": 4},
        **{**ROUTED, "n_routed_experts": 12, "first_k_dense_replace": 0},
        n_group=4,
        topk_group=2,
        norm_topk_prob=True,
        sliding_window=9,
        max_window_layers=2,
        attention_bias=True,
        tie_word_embeddings=True,
    ),
    "minimax_m2": MiniMaxM2Config(**MINIMAX, rotary_dim=8),
    "minimax_m2, all turned, tied": MiniMaxM2Config(
        **MINIMAX, tie_word_embeddings=True, rope_parameters=LINEAR
    ),
    "flex_olmo": FlexOlmoConfig(**BY_HIDDEN, num_experts=8, num_experts_per_tok=3, pad_token_id=0),
    "flex_olmo, renormalised, every bias, tied, yarn": FlexOlmoConfig(
        **BY_HIDDEN,
        num_experts=6,
        pad_token_id=0,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        attention_bias=True,
        tie_word_embeddings=True,
        rope_parameters=YARN,
    ),
    "solar_open": SolarOpenConfig(**SOLAR),
    "solar_open, groups, not renormalised, every bias, tied, linear rope": SolarOpenConfig(
        **{**SOLAR, "n_routed_experts": 12},
        n_group=4,
        topk_group=2,
        norm_topk_prob=False,
        attention_bias=True,
        tie_word_embeddings=True,
        rope_parameters=LINEAR,
    ),
    "exaone4": Exaone4Config(
        **{**BY_HIDDEN, "num_hidden_layers": 5}, sliding_window=9, rope_parameters=LLAMA3
    ),
    "exaone4, other layers, tied": Exaone4Config(
        **{**BY_HIDDEN, "num_hidden_layers": 4},
        sliding_window=7,
        sliding_window_pattern=2,
        tie_word_embeddings=True,
    ),
    "exaone4, no windows": Exaone4Config(
        **BY_HIDDEN, sliding_window=None, layer_types=["full_attention"] * 3, rope_parameters=LINEAR
    ),
    "cwm": CwmConfig(**{**SIZES, "num_hidden_layers": 6}, sliding_window=9),
    "cwm, listed layers, every bias, tied, linear rope": CwmConfig(
        **SIZES,
        sliding_window=7,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        mlp_bias=True,
        tie_word_embeddings=True,
        rope_parameters=LINEAR,
    ),
    "phi": PhiConfig(**NORMED),
    "phi, q and k normed, all turned, tied, relu": PhiConfig(
        **NORMED,
        qk_layernorm=True,
        layer_norm_eps=1e-3,
        hidden_act="relu",
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 99.0, "partial_rotary_factor": 1.0},
    ),
    "nemotron": NemotronConfig(**NORMED),
    "nemotron, wide heads, every bias, all turned, tied": NemotronConfig(
        **NORMED,
        head_dim=20,
        norm_eps=1e-3,
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 99.0, "partial_rotary_factor": 1.0},
    ),
    "arcee": ArceeConfig(**SIZES, rope_parameters=YARN),
    "arcee, every bias, tied": ArceeConfig(
        **BY_HIDDEN, attention_bias=True, mlp_bias=True, tie_word_embeddings=True
    ),
    "helium": HeliumConfig(**{**BY_HIDDEN, "head_dim": 16}),
    "helium, every bias, tied, linear rope": HeliumConfig(
        **{**BY_HIDDEN, "head_dim": 16, "rms_norm_eps": 1e-2},
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=True,
        rope_parameters=LINEAR,
    ),
    "granite moe, shared": GraniteMoeSharedConfig(
        **{**BY_HIDDEN, "initializer_range": 0.1},
        **FACTORS,
        num_local_experts=8,
        num_experts_per_tok=3,
        shared_intermediate_size=40,
    ),
    "granite moe, shared in none, every bias, tied, linear rope": GraniteMoeSharedConfig(
        **{**BY_HIDDEN, "initializer_range": 0.1},
        num_local_experts=6,
        num_experts_per_tok=2,
        attention_multiplier=0.3,
        attention_bias=True,
        tie_word_embeddings=True,
        rope_parameters=LINEAR,
    ),
    "hyperclovax": HyperCLOVAXConfig(**BY_HIDDEN),
    "hyperclovax, no norms behind, every factor and bias, tied, yarn": HyperCLOVAXConfig(
        **{**SIZES, "hidden_size": 96},
        **FACTORS,
        use_post_norm=False,
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=True,
        rope_parameters=YARN,
    ),
    "hyperclovax, every factor": HyperCLOVAXConfig(**BY_HIDDEN, **FACTORS),
    "gpt_bigcode": GPTBigCodeConfig(**GPT2),
    "gpt_bigcode, q, k and v head by head, wide, unscaled, untied, gelu": GPTBigCodeConfig(
        **GPT2,
        multi_query=False,
        n_inner=70,
        layer_norm_epsilon=1e-3,
        scale_attn_weights=False,
        tie_word_embeddings=False,
        activation_function="gelu",
    ),
    "hunyuan dense": HunYuanDenseV1Config(**SIZES),
    "hunyuan dense, every bias, tied, stretched by alpha": HunYuanDenseV1Config(
        **SIZES,
        attention_bias=True,
        tie_word_embeddings=True,
        rope_parameters={
            "rope_type": "dynamic",
            "rope_theta": 100.0,
            "alpha": 50.0,
            "factor": 1.0,
        },
    ),
    "hunyuan moe": HunYuanMoEV1Config(**SIZES, num_experts=8, moe_topk=3),
    "hunyuan moe, other numbers in layers, every bias, tied, linear rope": HunYuanMoEV1Config(
        **SIZES,
        num_experts=6,
        moe_topk=[1, 4, 2],
        attention_bias=True,
        tie_word_embeddings=True,
        rope_parameters=LINEAR,
    ),
    "olmo": OlmoConfig(**NORMED),
    "olmo, clipped, every bias, tied, yarn": OlmoConfig(
        **NORMED, clip_qkv=0.5, attention_bias=True, tie_word_embeddings=True, rope_parameters=YARN
    ),
    "olmoe, clipped": OlmoeConfig(**BY_HIDDEN, num_experts=8, num_experts_per_tok=3, clip_qkv=0.5),
    "apertus": ApertusConfig(**BY_HIDDEN),
    "apertus, every bias, tied, default rope": ApertusConfig(
        **BY_HIDDEN,
        attention_bias=True,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 300.0},
    ),
    "exaone_moe": ExaoneMoeConfig(**EXAONE_MOE),
    "exaone_moe, groups, not renormalised, dense in the middle, tied": ExaoneMoeConfig(
        **{**EXAONE_MOE, "num_experts": 12, "num_hidden_layers": 4},
        n_group=4,
        topk_group=2,
        norm_topk_prob=False,
        routed_scaling_factor=1.7,
        mlp_layer_types=["sparse", "dense", "sparse", "sparse"],
        tie_word_embeddings=True,
        rope_parameters=LINEAR,
    ),
}
