"""Qwen2-MoE: biases of q, k and v; experts, and a shared expert. No torch."""

from __future__ import annotations

from typing import Any

from quire.families.family import Family, sizes
from quire.families.fields import Fields
from quire.families.mixtures import ROUTER_KEYS, read_experts, with_experts
from quire.families.reading import read_heads, read_plain_decoder, windows_from_a_layer_on
from quire.layer_plan import MlpPlan
from quire.spec import ModelSpec


def read(fields: Fields) -> ModelSpec:
    spec = read_plain_decoder(
        fields,
        read_heads(fields, kv_heads=16),
        qkv_bias=fields.flag("qkv_bias", True),
        windows=windows_from_a_layer_on(fields, _has_window),
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


def _has_window(layer: int, first: int) -> bool:
    """Every second one of the first layers."""
    return layer < first and layer % 2 == 0


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
