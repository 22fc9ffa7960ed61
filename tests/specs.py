"""Specs of plain decoders, changed in what every layer shares."""

from __future__ import annotations

from typing import Any

from quire.layer_plan import mlp_of
from quire.spec import ModelSpec, plain_decoder


def changed(spec: ModelSpec, **facts: Any) -> ModelSpec:
    """The plain decoder with other facts, by the names that `plain_decoder` has for them."""
    attention, mlp = spec.layers[0].attention, mlp_of(spec.layers[0])
    same = ("family", "vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads")
    more = ("num_kv_heads", "head_dim", "max_model_len", "norm_eps")
    around = ("tied_embeddings", "eos_ids", "bos_id", "dtype")
    now: dict[str, Any] = {name: getattr(spec, name) for name in (*same, *more, *around)}
    now |= {"rope_theta": spec.rope.theta, "qk_norm": attention.qk_norm is not None}
    now |= {"qkv_bias": attention.qkv_bias, "o_bias": attention.o_bias, "mlp_bias": mlp.bias}
    assert spec == plain_decoder(**now, windows=spec.windows)
    now |= {} if "num_layers" in facts else {"windows": spec.windows}
    return plain_decoder(**{**now, **facts})
