"""Tiny configs of families that are older than most, and were added late."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig

from tests.parity.families import LINEAR, YARN, known
from tests.parity.more_families import BY_HIDDEN, GPT2

# A rope on half of each head, of 16 and of 12 numbers.
GPTJ: dict[str, Any] = {**GPT2, "rotary_dim": 8}
CODEGEN: dict[str, Any] = {**GPTJ, "n_head": 8}
# Windows of 9 tokens in two of three layers, which prompts exceed.
GPT_NEO: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 96,
    "num_layers": 3,
    "num_heads": 6,
    "max_position_embeddings": 256,
    "attention_types": [[["local", "global"], 1], [["local"], 1]],
    "window_size": 9,
}
PERSIMMON: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 96,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 256,
}
DBRX: dict[str, Any] = {
    "vocab_size": 96,
    "d_model": 96,
    "n_heads": 6,
    "n_layers": 3,
    "max_seq_len": 256,
    "attn_config": {"kv_n_heads": 2, "clip_qkv": 0.5, "rope_theta": 10000.0},
    "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 8, "moe_top_k": 3},
}
BIOGPT = {**PERSIMMON, "pad_token_id": 0}
XGLM: dict[str, Any] = {
    "vocab_size": 96,
    "d_model": 96,
    "ffn_dim": 80,
    "num_layers": 3,
    "attention_heads": 6,
    "max_position_embeddings": 256,
}
BITNET = {**BY_HIDDEN, "rms_norm_eps": 1e-3}
_MADE: dict[str, PretrainedConfig | None] = {
    "gptj": known("GPTJConfig", **GPTJ),
    "gptj, wide, all turned, relu, tied": known(
        "GPTJConfig",
        **{**GPT2, "n_inner": 70, "layer_norm_epsilon": 1e-2},
        rotary_dim=16,
        activation_function="relu",
        tie_word_embeddings=True,
    ),
    "codegen": known("CodeGenConfig", **CODEGEN),
    "codegen, wide, all turned, exact gelu, tied": known(
        "CodeGenConfig",
        **{**CODEGEN, "n_inner": 70, "layer_norm_epsilon": 1e-2, "rotary_dim": 12},
        activation_function="gelu",
        tie_word_embeddings=True,
    ),
    "gpt_neo": known("GPTNeoConfig", **GPT_NEO),
    "gpt_neo, wide, in turn, relu, untied": known(
        "GPTNeoConfig",
        **{
            **GPT_NEO,
            "num_layers": 4,
            "attention_types": [[["global", "local"], 2]],
            "layer_norm_epsilon": 1e-2,
        },
        intermediate_size=70,
        activation_function="relu",
        tie_word_embeddings=False,
    ),
    "persimmon": known("PersimmonConfig", **PERSIMMON),
    "persimmon, no norms of heads, a quarter turned, gelu, tied, linear rope": known(
        "PersimmonConfig",
        **PERSIMMON,
        qk_layernorm=False,
        hidden_act="gelu",
        layer_norm_eps=1e-2,
        tie_word_embeddings=True,
        rope_parameters={**LINEAR, "partial_rotary_factor": 0.25},
    ),
    "dbrx": known("DbrxConfig", **DBRX),
    "dbrx, not renormalised, one kv head, another theta, yarn": known(
        "DbrxConfig",
        **{
            **DBRX,
            "attn_config": {"kv_n_heads": 1, "clip_qkv": 1.5, "rope_theta": 300.0},
            "ffn_config": {**DBRX["ffn_config"], "moe_normalize_expert_weights": None},
            "rope_parameters": {**YARN, "rope_theta": 300.0},
        },
    ),
    "biogpt": known("BioGptConfig", **BIOGPT),
    "biogpt, not scaled, relu, untied": known(
        "BioGptConfig",
        **BIOGPT,
        scale_embedding=False,
        hidden_act="relu",
        tie_word_embeddings=False,
    ),
    "xglm": known("XGLMConfig", **XGLM),
    "xglm, not scaled, relu, untied": known(
        "XGLMConfig",
        **XGLM,
        scale_embedding=False,
        activation_function="relu",
        tie_word_embeddings=False,
    ),
    "bitnet": known("BitNetConfig", **BITNET),
    "bitnet, silu, every bias, tied, linear rope": known(
        "BitNetConfig",
        **{**BITNET, "rms_norm_eps": 1e-2, "rope_parameters": LINEAR},
        hidden_act="silu",
        attention_bias=True,
        tie_word_embeddings=True,
    ),
}
OLDER = {name: config for name, config in _MADE.items() if config is not None}
