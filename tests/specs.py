"""Small specs and configs: what a test does not name has any value that works."""

from __future__ import annotations

from typing import Any

from quire.config import EngineConfig
from quire.layer_plan import mlps_of
from quire.spec import ModelSpec, plain_decoder


def changed(spec: ModelSpec, **facts: Any) -> ModelSpec:
    """The plain decoder with other facts, by the names that `plain_decoder` has for them."""
    attention, (mlp,) = spec.layers[0].attention, mlps_of(spec.layers[0])
    same = ("family", "vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads")
    more = ("num_kv_heads", "head_dim", "max_model_len", "norm_eps")
    around = ("tied_embeddings", "eos_ids", "bos_id", "dtype")
    now: dict[str, Any] = {name: getattr(spec, name) for name in (*same, *more, *around)}
    now |= {"rope_theta": spec.rope.theta, "qk_norm": attention.qk_norm is not None}
    now |= {"qkv_bias": attention.qkv_bias, "o_bias": attention.o_bias, "mlp_bias": mlp.bias}
    assert spec == plain_decoder(**now, windows=spec.windows)
    now |= {} if "num_layers" in facts else {"windows": spec.windows}
    return plain_decoder(**{**now, **facts})


def small_spec(**facts: Any) -> ModelSpec:
    """A plain decoder of two layers, by the names that `plain_decoder` has."""
    usual: dict[str, Any] = {
        "family": "llama",
        "vocab_size": 100,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "max_model_len": 512,
        "norm_eps": 1e-5,
        "rope_theta": 10000.0,
    }
    return plain_decoder(**{**usual, **facts})


def small_config(**changes: Any) -> EngineConfig:
    """A config for tiny models on a CPU."""
    fields: dict[str, Any] = {
        "device": "cpu",
        "dtype": "float32",
        "quantization": None,
        "max_model_len": 512,
        "block_size": 4,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 256,
        "enable_prefix_caching": True,
        "depth": 1,
        "max_repeat": 1,
        "batch_invariant": False,
        "seed": 0,
        "gpu_memory_utilization": 0.9,
        "kv_cache_memory_bytes": None,
        "num_blocks": 64,
        "kv_cache_dtype": "auto",
        "enforce_eager": True,
        "logprobs_mode": "raw_logprobs",
        "max_logprobs": -1,
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "trust_remote_code": False,
        "max_wait": 60.0,
    }
    return EngineConfig(**{**fields, **changes})
