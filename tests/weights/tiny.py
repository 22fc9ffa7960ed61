"""Tiny random models of each family, as a Hugging Face directory and as a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

gguf = pytest.importorskip("gguf")

CLASSES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "phi3": (Phi3Config, Phi3ForCausalLM),
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM),
}
SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "eos_token_id": [3, 5],
    "bos_token_id": 1,
}


def tiny_model(family: str, **changes: Any) -> PreTrainedModel:
    """A random model; norms and biases are random too, so that a swapped one shows."""
    config_class, model_class = CLASSES[family]
    torch.manual_seed(7)
    model: PreTrainedModel = model_class(config_class(**{**SIZES, **changes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.normal_(1.0, 0.1)
    return model


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
# Where norms stand before and behind the branches.
GGUF_NORMS_AROUND = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def gguf_name(name: str, arch: str = "llama") -> str:
    module, kind = name.rsplit(".", 1)
    names = GGUF_NAMES | (GGUF_NORMS_AROUND if arch == "gemma3" else {})
    if module.startswith("model.layers."):
        _, _, layer, inner = module.split(".", 3)
        return f"blk.{layer}.{names[inner]}.{kind}"
    return f"{names[module]}.{kind}"


def rearranged(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k as llama.cpp's converter writes them: the halves of a head interleaved."""
    by_head = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return np.ascontiguousarray(by_head.swapaxes(1, 2).reshape(rows.shape))


def write_gguf(
    model: PreTrainedModel,
    path: Path,
    *,
    quantised: str = "F32",
    vectors: bool = False,
    metadata: Mapping[str, int | float | str | list[bool]] | None = None,
    tensors: dict[str, np.ndarray] | None = None,
    split: int = 0,
) -> Path:
    """The model as a GGUF file, matrices in the given format, `vectors`, too, which no tool does;
    `split`: in parts of so many tensors, after a first one that has none."""
    config = model.config
    other = {"mistral": "llama", "gemma3_text": "gemma3"}
    arch = other.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, arch, split_max_tensors=split, small_first_shard=split > 0)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(SIZES["head_dim"])
    writer.add_value_length(SIZES["head_dim"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if arch == "gemma3":
        writer.add_sliding_window(config.sliding_window)
    writer.add_token_list([f"t{i}" for i in range(config.vocab_size)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(3)
    writer.add_eot_token_id(5)
    for key, value in (metadata or {}).items():
        kinds = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        kinds |= {list: writer.add_array}
        kinds[type(value)](key.format(arch=arch), value)
    kind = gguf.GGMLQuantizationType[quantised]
    for name, tensor in {**model.state_dict(), **(tensors or {})}.items():
        _add(writer, name, np.asarray(tensor), config, arch, kind, 1 if vectors else 2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(
    writer: Any, name: str, values: np.ndarray, config: Any, arch: str, kind: Any, dims: int
) -> None:
    if name == "lm_head.weight" and config.tie_word_embeddings:
        return
    if arch == "llama":
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        for projection, count in heads.items():
            if f"{projection}." in name:
                values = rearranged(values, count)
    if arch == "gemma3" and name.endswith("norm.weight"):
        values = values + 1  # as its converter does
    stored = gguf_name(name, arch) if name.startswith(("model.", "lm_head.")) else name
    if values.ndim >= dims and kind != gguf.GGMLQuantizationType.F32:
        writer.add_tensor(stored, gguf.quants.quantize(values, kind), raw_dtype=kind)
    else:
        writer.add_tensor(stored, values)
