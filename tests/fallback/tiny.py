"""Tiny random models of Transformers' causal classes, made from their configs.

Every size is small, windows are shorter than prompts, and every parameter and stored buffer is
random: zero biases and unit norms hide mistakes.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

MODEL_TYPES: dict[str, str] = {}  # one model type for each class
for _type, _names in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
    MODEL_TYPES.setdefault(_names if isinstance(_names, str) else _names[0], _type)

_HIDDEN, _INNER, _LAYERS, _HEADS, _LENGTH = 32, 48, 4, 4, 128
SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embed_dim", "embedding_size"), _HIDDEN),
    **dict.fromkeys(("word_embed_proj_dim", "input_embedding_size", "emb_dim"), _HIDDEN),
    **dict.fromkeys(("intermediate_size", "d_ff", "ffn_dim", "decoder_ffn_dim"), _INNER),
    **dict.fromkeys(("n_inner", "ffn_hidden_size", "dff", "dim_ff", "encoder_ffn_dim"), _INNER),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 24),
    **dict.fromkeys(("shared_intermediate_size", "ffn_intermediate_size"), 24),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers"), _LAYERS),
    **dict.fromkeys(("decoder_layers", "num_decoder_layers"), _LAYERS),
    **dict.fromkeys(("encoder_layers", "num_encoder_layers"), 1),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads", "n_heads"), _HEADS),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads"), _HEADS),
    **dict.fromkeys(("num_decoder_attention_heads", "num_encoder_attention_heads"), _HEADS),
    **dict.fromkeys(("head_dim", "d_kv", "dim_head", "rotary_dim", "attention_head_size"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), _LENGTH),
    **dict.fromkeys(("max_target_positions", "seq_length"), _LENGTH),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("moe_num_experts", "num_moe_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "moe_top_k"), 2),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("pronunciation_embed_dim", "shape_embed_dim", "rel_extent"), 16),
    **dict.fromkeys(("pronunciation_vocab_size", "shape_vocab_size"), 20),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input", "text_vocab_size"), 96),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "first_k_dense_replace"), 1),
    "num_key_value_heads": 2,
    "sliding_window": 8,
    "attention_chunk_size": 8,
    "use_sliding_window": True,
    "max_window_layers": 2,
    "hidden_size_per_layer_input": 8,
    "laurel_rank": 8,
    "image_size": 16,
    "patch_size": 8,
    "default_language": "en_XX",
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "is_decoder": True,
}
_MIXED = ["sliding_attention", "full_attention"] * 2
_LINEAR = {
    "num_experts_per_token": 2,
    "linear_head_dim": 8,
    "linear_num_heads": 4,
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "mlp_layer_types": ["dense", "sparse"] * 2,
}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 4, "mamba_chunk_size": 16}
_SHARED = {
    "layers_block_type": ["linear_attention", "hybrid"] * 2,
    "attention_hidden_size": 64,
    "attention_head_dim": 16,
    "num_key_value_heads": 4,
}
_INDEXED = {"indexer_budget": 8, "indexer_compress_ratio": 1, "ngram_vocab_size_base": 50}
_DRAFTER = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "vocab_size": 96,
    "intermediate_size": 48,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0,
}
# What a class needs beside: its own names, or sizes that belong together.
SPECIAL: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {
        "layer_types": _MIXED,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 10000.0} for kind in _MIXED[:2]
        },
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 1.0, "rope_theta": 10000.0},
        "ffn_config": {
            "ffn_hidden_size": 48,
            "moe_num_experts": 4,
            "moe_top_k": 2,
            "hidden_size": 32,
        },
    },
    "gemma3n_text": {
        "layer_types": _MIXED,
        "num_kv_shared_layers": 2,
        "activation_sparsity_pattern": [0.0] * 4,
    },
    "blt": {"encoder_hash_byte_group_vocab": 50},
    "longcat_flash": {"expert_ffn_hidden_size": 24, "zero_expert_num": 2, "moe_topk": 2},
    "reformer": {"axial_pos_embds_dim": (16, 16), "axial_pos_shape": (8, 16)},
    "gemma4_text": {"layer_types": _MIXED},
    "gemma4_unified_text": {"layer_types": _MIXED},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": 8},
    "bailing_hybrid": _LINEAR | {"num_expert_group": 1},
    "kimi_linear": _LINEAR,
    "bamba": _MAMBA | {"attn_layer_indices": [1, 3]},
    "granitemoehybrid": _MAMBA | {"layer_types": ["mamba", "attention"] * 2},
    "falcon_h1": _MAMBA | {"mamba_d_ssm": 64},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 1, "state_size": 8, "chunk_size": 16},
    "nemotron_h": {"mamba_num_heads": 8, "mamba_head_dim": 8, "ssm_state_size": 4}
    | {"layers_block_type": ["mamba", "attention", "mlp", "mamba"], "n_groups": 1},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 4}
    | {"mamba_d_state": 4},
    "zaya": {"num_experts_per_tok": 1, "router_hidden_size": 16},
    "zamba": _SHARED | {"mamba_dt_rank": 4},
    "zamba2": _SHARED
    | {"n_mamba_heads": 8, "mamba_headdim": 8, "num_query_groups": 4, "hybrid_layer_ids": [1, 3]},
    "qwen4_exp": {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8} | _INDEXED,
    "gemma4_assistant": {"text_config": {"model_type": "gemma4_text", **_DRAFTER}},
    "dots3_note": {
        **{f"swa_{name}": 2 for name in ("num_attention_heads", "num_key_value_heads")},
        **{f"swa_{name}": 16 for name in ("q_lora_rank", "kv_lora_rank", "head_dim")},
        **{f"swa_{name}": 8 for name in ("qk_nope_head_dim", "v_head_dim")},
        "head_dim": 16,
        "index_topk": 8,
        "index_head_dim": 16,
        "index_n_heads": 16,  # of few, scores are often all 0, and topk takes any of these
        "shared_experts_intermediate_size": 24,
    },
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
}
_NO_SETTER = {
    "falcon": ("head_dim",),
    "prophetnet": ("num_hidden_layers",),
    "xlnet": ("max_position_embeddings",),
    "xlstm": ("v_head_dim",),
}


def tiny_config(architecture: str, **changes: Any) -> Any:
    made_by = getattr(transformers, architecture).config_class
    model_type = MODEL_TYPES.get(architecture, made_by.model_type)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return made_by(**_small(made_by, model_type) | SPECIAL.get(model_type, {}) | changes)


def _small(made_by: Any, model_type: str) -> dict[str, Any]:
    special = SPECIAL.get(model_type, {})
    plain = made_by(**special) if model_type == "gemma4_assistant" else made_by()
    aliases = getattr(made_by, "attribute_map", {})
    small = {
        name: value
        for name, value in SMALL.items()
        if _has(plain, name) and name not in _NO_SETTER.get(model_type, ()) and name not in aliases
    }
    if _has(plain, "kv_lora_rank"):
        small["num_key_value_heads"] = _HEADS
    for name in getattr(made_by, "sub_configs", {}):
        inner = getattr(plain, name, None)
        if inner is not None and name not in SPECIAL.get(model_type, {}):
            more = SPECIAL.get(inner.model_type, {}) | {"model_type": inner.model_type}
            small[name] = _small(type(inner), inner.model_type) | more
    return small


def _has(config: Any, name: str) -> bool:
    try:
        return hasattr(config, name)
    except Exception:  # sizes that differ by layer answer so
        return True


def tiny_model(architecture: str, seed: int = 0, **changes: Any) -> Any:
    config = tiny_config(architecture, **changes)
    made_by = getattr(transformers, architecture)
    with torch.device("meta"):
        count = sum(p.numel() for p in made_by(config).parameters())
    if count > 8_000_000:
        raise ValueError(f"{architecture} has {count:,} weights: not tiny")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = made_by(config).eval()
        stored = model.state_dict()
        with torch.no_grad():
            for name, weight in stored.items():
                if weight.is_floating_point():
                    _randomise(name, weight)
    return model


def _randomise(name: str, weight: torch.Tensor) -> None:
    if weight.ndim > 1:
        weight.normal_(0, 0.25)
    else:
        centre = 0.0 if name.endswith("bias") else 1.0
        weight.normal_(centre, 0.3)


def saved(model: Any, directory: Path) -> str:
    model.save_pretrained(directory)
    return str(directory)
