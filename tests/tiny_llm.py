"""A random model of two small layers behind the default model's tokenizer: fast and real."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from quire import LLM

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 49152,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def tiny_llm(directory: Path, **options: Any) -> LLM:
    """Weights are random but always the same ones."""
    (directory / "config.json").write_text(json.dumps(CONFIG))
    usual = {"tokenizer": "smollm2", "load_format": "dummy", "dtype": "float32"}
    return LLM(str(directory), **{"kv_cache_memory_bytes": 8 << 20, **usual, **options})
