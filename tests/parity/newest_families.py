"""Tiny configs of the families that came last, as far as the installed Transformers has their
classes."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig

from tests.parity.families import LINEAR, LLAMA3, SIZES, YARN, known
from tests.parity.later_families import FACTORS, NORMED
from tests.parity.more_families import BY_HIDDEN, EXPERTS, GEMMA2, LATENT, ROUTED, STRETCHED
from tests.parity.older_families import OLDER

# Chunks that no text here exceeds, and queries that grow within its length.
LLAMA4: dict[str, Any] = {
    **SIZES,
    "num_hidden_layers": 5,
    "initializer_range": 0.1,
    "intermediate_size": 32,
    "intermediate_size_mlp": 72,
    "num_local_experts": 8,
    "attention_chunk_size": 192,
    "floor_scale": 16,
    "pad_token_id": 0,
}
AFMOE: dict[str, Any] = {**SIZES, **EXPERTS, "num_hidden_layers": 5, "sliding_window": 9}
COHERE2_MOE: dict[str, Any] = {
    **{key: value for key, value in SIZES.items() if key != "rms_norm_eps"},
    "num_hidden_layers": 5,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "sliding_window": 9,
    "logit_scale": 0.5,
}
DENSE_LATENT = {key: value for key, value in LATENT.items() if key not in ROUTED}
PHIMOE: dict[str, Any] = {**BY_HIDDEN, "num_local_experts": 8}
_MADE: dict[str, PretrainedConfig | None] = {
    "phimoe": known("PhimoeConfig", **PHIMOE),
    "phimoe, longrope, far apart, window, every bias, tied": known(
        "PhimoeConfig",
        **PHIMOE,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0 + i / 8 for i in range(8)],
            "long_factor": [2.0 + i for i in range(8)],
            "short_mscale": 1.3,
            "long_mscale": 1.7,
            "original_max_position_embeddings": 256,
        },
        router_jitter_noise=0.4,
        sliding_window=9,
        attention_bias=True,
        lm_head_bias=True,
        tie_word_embeddings=True,
    ),
    "llama4": known("Llama4TextConfig", **LLAMA4),
    "llama4, two experts in some layers, one scaling of ropes, no norms, every bias, tied": (
        known(
            "Llama4TextConfig",
            **LLAMA4,
            num_experts_per_tok=2,
            interleave_moe_layer_step=2,
            no_rope_layer_interval=2,
            use_qk_norm=False,
            attn_scale=0.7,
            attention_bias=True,
            tie_word_embeddings=True,
            rope_parameters={**LLAMA3, "high_freq_factor": 1.0},
        )
    ),
    "llama4, listed layers, queries that do not grow": known(
        "Llama4TextConfig",
        **LLAMA4,
        attn_temperature_tuning=False,
        moe_layers=[1, 2],
        no_rope_layers=[1, 0, 1, 1, 0],
        layer_types=["full_attention"] * 5,
    ),
    "jais2": known("Jais2Config", **NORMED),
    "jais2, no bias, tied, linear rope": known(
        "Jais2Config",
        **{**NORMED, "layer_norm_eps": 1e-3},
        attention_bias=False,
        mlp_bias=False,
        tie_word_embeddings=True,
        rope_parameters=LINEAR,
    ),
    "vaultgemma": known("VaultGemmaConfig", **GEMMA2),
    "vaultgemma, no softcaps, every bias, untied, listed layers": known(
        "VaultGemmaConfig",
        **{**GEMMA2, "attn_logit_softcapping": None, "final_logit_softcapping": None},
        layer_types=["full_attention", "sliding_attention"] * 2,
        attention_bias=True,
        tie_word_embeddings=False,
    ),
    "youtu": known("YoutuConfig", **DENSE_LATENT),
    "youtu, every bias, halves, no rank, untied, yarn": known(
        "YoutuConfig",
        **{**DENSE_LATENT, "q_lora_rank": None},
        attention_bias=True,
        rope_interleave=False,
        tie_word_embeddings=False,
        rope_parameters=STRETCHED,
    ),
    "minicpm3": known("MiniCPM3Config", **DENSE_LATENT, dim_model_base=32),
    "minicpm3, every bias, no factors, no rank, untied": known(
        "MiniCPM3Config",
        **{**DENSE_LATENT, "q_lora_rank": None, "v_head_dim": None},
        scale_emb=1.0,
        scale_depth=None,
        dim_model_base=None,
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=False,
    ),
    "granite_swa": known(
        "GraniteSWAConfig", **{**BY_HIDDEN, "num_hidden_layers": 5}, **FACTORS, sliding_window=9
    ),
    "granite_swa, listed layers, thetas and no rope, every bias, untied": known(
        "GraniteSWAConfig",
        **{**BY_HIDDEN, "num_hidden_layers": 4},
        sliding_window=7,
        layer_types=["sliding_attention", "full_attention"] * 2,
        layer_rope_theta=[100.0, 0, 5000, 100.0],
        attention_multiplier=0.3,
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=False,
        rope_parameters=LINEAR,
    ),
    "granitemoe_swa": known(
        "GraniteMoeSWAConfig",
        **{**BY_HIDDEN, "num_hidden_layers": 5, "initializer_range": 0.1},
        **FACTORS,
        num_local_experts=8,
        num_experts_per_tok=3,
        shared_intermediate_size=40,
        sliding_window=9,
    ),
    "granitemoe_swa, shared in none, thetas and no rope, every bias, tied": known(
        "GraniteMoeSWAConfig",
        **{**BY_HIDDEN, "initializer_range": 0.1},
        num_local_experts=6,
        sliding_window=7,
        layer_rope_theta=[0, 100.0, 5000],
        attention_multiplier=0.3,
        attention_bias=True,
        tie_word_embeddings=True,
    ),
    "mellum": known(
        "MellumConfig",
        **{**SIZES, **EXPERTS, "num_hidden_layers": 4},
        sliding_window=9,
        layer_types=["sliding_attention", "full_attention"] * 2,
        rope_parameters={
            "full_attention": YARN,
            "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
        },
    ),
    "mellum, no windows, dense in the middle, not renormalised, every bias, tied": known(
        "MellumConfig",
        **{**SIZES, **EXPERTS},
        norm_topk_prob=False,
        mlp_layer_types=["sparse", "dense", "sparse"],
        attention_bias=True,
        tie_word_embeddings=True,
    ),
    "hy_v3": known("HYV3Config", **{**SIZES, **EXPERTS}),
    "hy_v3, two shared, dense in the middle, every bias, tied, linear rope": known(
        "HYV3Config",
        **{**SIZES, **EXPERTS},
        num_shared_experts=2,
        router_scaling_factor=1.7,
        mlp_layer_types=["sparse", "dense", "sparse"],
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=True,
        rope_parameters=LINEAR,
    ),
    "afmoe": known("AfmoeConfig", **AFMOE, mup_enabled=True),
    "afmoe, one shared, listed layers, all with experts, tied, linear rope": known(
        "AfmoeConfig",
        **{**AFMOE, "num_hidden_layers": 4},
        num_dense_layers=0,
        num_shared_experts=1,
        route_scale=1.7,
        layer_types=["full_attention", "sliding_attention"] * 2,
        tie_word_embeddings=True,
        rope_parameters=LINEAR,
    ),
    "cohere2_moe": known("Cohere2MoeConfig", **COHERE2_MOE),
    "cohere2_moe, averaged, by sigmoids, dense before, rms, every bias, untied": known(
        "Cohere2MoeConfig",
        **{**COHERE2_MOE, "num_hidden_layers": 6},
        num_shared_experts=2,
        expert_selection_fn="sigmoid",
        first_k_dense_replace=2,
        prefix_dense_intermediate_size=72,
        rms_norm_eps=1e-3,
        sliding_window_pattern=3,
        attention_bias=True,
        tie_word_embeddings=False,
    ),
    "cohere2_moe, added, not renormalised, listed": known(
        "Cohere2MoeConfig",
        **{**COHERE2_MOE, "num_hidden_layers": 3},
        num_shared_experts=1,
        shared_expert_combination_strategy="sum",
        expert_selection_fn="sigmoid",
        norm_topk_prob=False,
        prefix_dense_sliding_window_pattern=2,
        mlp_layer_types=["dense", "sparse", "dense"],
        layer_types=["full_attention", "sliding_attention", "sliding_attention"],
    ),
    "nanochat": known("NanoChatConfig", **BY_HIDDEN),
    "nanochat, no softcap, every bias, tied": known(
        "NanoChatConfig",
        **BY_HIDDEN,
        final_logit_softcapping=None,
        attention_bias=True,
        tie_word_embeddings=True,
    ),
}
NEWEST = {name: config for name, config in _MADE.items() if config is not None} | OLDER
