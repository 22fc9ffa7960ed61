"""Encoders as GGUF files, as llama.cpp's converter writes them: names by the `gguf` package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

gguf = pytest.importorskip("gguf")

ARCHITECTURES = {
    "nomic_bert": "nomic-bert",
    "modernbert": "modern-bert",
    "jina_bert": "jina-bert-v2",
    "jina_embeddings_v3": "jina-bert-v3",
    "eurobert": "eurobert",
    "gemma3_text": "gemma-embedding",
}
PREFIXES = ("bert.", "roberta.", "distilbert.", "nomic_bert.", "model.")
LEFT_OUT = ("embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias")
ONE_NAME = ("distilbert", "modernbert")  # whose last part is called as other heads' first
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def write_gguf(
    path: Path,
    directory: Path,
    config: Any,
    tensors: Mapping[str, torch.Tensor] | None = None,
    **metadata: Any,
) -> Path:
    """The model of a directory; `tensors` are others by GGUF's names, `metadata` are keys with
    their values, None to leave one out."""
    arch = ARCHITECTURES.get(config.model_type, "bert")
    said = {**_sizes(arch, config), **metadata}
    writer = gguf.GGUFWriter(path, arch)
    for key, value in said.items():
        if value is not None:
            _add(writer, key.replace("ARCH", arch), value)
    kind = next(k for k, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    for name, values in load_file(directory / "model.safetensors").items():
        for prefix in PREFIXES:
            name = name.removeprefix(prefix)
        if name in LEFT_OUT:
            continue
        if name == "embeddings.position_embeddings.weight" and "roberta" in config.model_type:
            values = values[config.pad_token_id + 1 :]
        if config.model_type in ONE_NAME and name.startswith("classifier."):
            name = name.replace("classifier", "classifier.out_proj")
        if arch == "gemma-embedding" and name.endswith("norm.weight"):
            values = values + 1
        named = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert named is not None, name
        writer.add_tensor(named, np.ascontiguousarray(values))
    for name, tensor in (tensors or {}).items():
        writer.add_tensor(name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: Any, key: str, value: Any) -> None:
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
    add |= {str: writer.add_string, list: writer.add_array}
    add[type(value)](key, value)


def _sizes(arch: str, config: Any) -> dict[str, Any]:
    cut = config.pad_token_id + 1 if "roberta" in config.model_type else 0
    inner = getattr(config, "intermediate_size", None) or config.hidden_dim
    said: dict[str, Any] = {
        "ARCH.context_length": config.max_position_embeddings - cut,
        "ARCH.embedding_length": config.hidden_size,
        "ARCH.block_count": config.num_hidden_layers,
        "ARCH.feed_forward_length": inner,
        "ARCH.attention.head_count": config.num_attention_heads,
        "ARCH.attention.causal": False,
        "ARCH.attention.layer_norm_epsilon": getattr(config, "layer_norm_eps", 1e-12),
        "ARCH.pooling_type": 1,
    }
    if arch in ("nomic-bert", "jina-bert-v3", "eurobert"):
        said["ARCH.rope.freq_base"] = config.rope_parameters["rope_theta"]
    if arch in ("eurobert", "gemma-embedding"):
        said |= {
            "ARCH.attention.layer_norm_epsilon": None,
            "ARCH.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
            "ARCH.attention.head_count_kv": config.num_key_value_heads,
            "ARCH.attention.key_length": config.head_dim,
            "ARCH.attention.value_length": config.head_dim,
        }
    if arch == "gemma-embedding":
        ropes = config.rope_parameters
        said |= {
            "ARCH.attention.causal": None,
            "ARCH.attention.sliding_window_pattern": 2,
            "ARCH.rope.freq_base": ropes["full_attention"]["rope_theta"],
            "ARCH.rope.freq_base_swa": ropes["sliding_attention"]["rope_theta"],
        }
    if arch == "modern-bert":
        ropes = config.rope_parameters
        said |= {
            "ARCH.attention.layer_norm_epsilon": config.norm_eps,
            "ARCH.attention.sliding_window": config.local_attention,
            "ARCH.attention.sliding_window_pattern": 3,
            "ARCH.rope.freq_base": ropes["full_attention"]["rope_theta"],
            "ARCH.rope.freq_base_swa": ropes["sliding_attention"]["rope_theta"],
            "ARCH.rope.scaling.type": "none",
        }
    return said


def word_pieces(pieces: list[str], *, marked: bool = True) -> dict[str, Any]:
    """The metadata of a vocabulary as BERT has it; `marked`: special tokens have their type and
    their ids, which early files lack."""
    controls = [piece in SPECIAL for piece in pieces]
    tokens = [
        piece if control else piece[2:] if piece.startswith("##") else f"▁{piece}"
        for piece, control in zip(pieces, controls, strict=True)
    ]
    said: dict[str, Any] = {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type_count": 2,
    }
    if marked:
        said |= {
            "tokenizer.ggml.token_type": [3 if control else 1 for control in controls],
            "tokenizer.ggml.cls_token_id": pieces.index("[CLS]"),
            "tokenizer.ggml.seperator_token_id": pieces.index("[SEP]"),
            "tokenizer.ggml.unknown_token_id": pieces.index("[UNK]"),
        }
    return said
