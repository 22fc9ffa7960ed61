"""Qwen2-MoE: biases of q, k and v; experts, and a shared expert. No torch."""

from __future__ import annotations

from typing import Any

from quire.families.family import Family, sizes
from quire.families.fields import Fields
from quire.families.mixtures import ROUTER_KEYS, read_experts, with_experts
from quire.families.reading import (
    num_layers,
    read_heads,
    read_plain_decoder,
    read_window,
    windows_by_kind,
)
from quire.layer_plan import MlpPlan
from quire.spec import ModelSpec


def read(fields: Fields) -> ModelSpec:
    spec = read_plain_decoder(
        fields,
        read_heads(fields, kv_heads=16),
        qkv_bias=fields.flag("qkv_bias", True),
        windows=_windows(fields),
    )
    experts = read_experts(
        fields,
        fields.count("moe_intermediate_size", 1408),
        count=60,
        per_token=4,
        renormalise=fields.flag("norm_topk_prob", False),
        shared=MlpPlan(fields.count("shared_expert_intermediate_size", 5632)),
    )
    return with_experts(spec, fields, experts)


def _windows(fields: Fields) -> tuple[int | None, ...]:
    """Windows in every second one of the first layers, unless the config lists them."""
    window = read_window(fields) if fields.flag("use_sliding_window", False) else None
    first = fields.whole("max_window_layers", 28)
    usual = (window if i < first and i % 2 == 0 else None for i in range(num_layers(fields)))
    return windows_by_kind(fields, window) or tuple(usual)


def _gguf_words(fields: Fields, config: dict[str, Any]) -> dict[str, Any]:
    width = fields.count("qwen2moe.expert_shared_feed_forward_length")
    return {"shared_expert_intermediate_size": width}


FAMILY = Family(
    name="qwen2_moe",
    architectures=("Qwen2MoeForCausalLM",),
    read=read,
    unsaid=sizes(151_936, 2048, 5632, 24, 16, 32_768),
    gguf="qwen2moe",
    gguf_experts=True,
    gguf_words=_gguf_words,
    gguf_reads=("expert_shared_feed_forward_length",),
    without_effect=ROUTER_KEYS,
)
