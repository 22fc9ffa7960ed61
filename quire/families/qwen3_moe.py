"""Qwen3-MoE: q and k normed head by head, experts in place of feed-forwards. No torch."""

from __future__ import annotations

from quire.families.family import Family
from quire.families.fields import Fields
from quire.families.mixtures import ROUTER_KEYS, read_count, with_experts
from quire.families.reading import (
    num_layers,
    read_biases,
    read_heads,
    read_plain_decoder,
    read_window,
)
from quire.layer_plan import ExpertsPlan, MlpPlan
from quire.spec import ModelSpec


def read(fields: Fields) -> ModelSpec:
    window = read_window(fields) if fields.flag("use_sliding_window", False) else None
    spec = read_plain_decoder(
        "qwen3_moe",
        fields,
        read_heads(fields, kv_heads=4),
        **read_biases(fields),
        qk_norm=True,
        windows=(window,) * num_layers(fields),
    )
    experts = ExpertsPlan(
        read_count(fields, 128),
        fields.count("num_experts_per_tok", 8),
        MlpPlan(fields.count("moe_intermediate_size", 768)),
        renormalise=fields.flag("norm_topk_prob", False),
    )
    return with_experts(spec, fields, experts)


FAMILY = Family(
    name="qwen3_moe",
    architectures=("Qwen3MoeForCausalLM",),
    read=read,
    gguf="qwen3moe",
    gguf_experts=True,
    # GGUF files do not say it, and what runs them does it.
    gguf_words=lambda fields, config: {"norm_topk_prob": True},
    without_effect=ROUTER_KEYS,
)
