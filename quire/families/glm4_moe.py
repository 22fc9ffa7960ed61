"""Glm4Moe: rope on half of each head; experts chosen by sigmoids of scores plus a bias, and one
shared expert; the first layers have no experts. No torch."""

from __future__ import annotations

from typing import Any

from quire.families.family import Family, LayerNames, Name, sizes
from quire.families.fields import Fields
from quire.families.mixtures import (
    GGUF_ROUTING,
    ROUTER_KEYS,
    SHARED_NAMES,
    gguf_sigmoid_routing,
    read_routed_experts,
    with_experts,
)
from quire.families.reading import read_heads, read_plain_decoder
from quire.families.rope_config import read_rope
from quire.spec import ModelSpec


def read(fields: Fields, *, biased: bool = False) -> ModelSpec:
    """`biased`: the default of whether q, k and v have biases."""
    fields = fields.under({}, first_k_dense_replace=1)
    heads = read_heads(fields, kv_heads=8)
    spec = read_plain_decoder(
        fields,
        heads,
        rope=read_rope(fields, heads.head_dim, partial=True, factor=0.5),
        norm_eps=1e-5,
        qkv_bias=fields.flag("attention_bias", biased),
        qk_norm=fields.flag("use_qk_norm", False),
    )
    experts = read_routed_experts(fields, count=128, width=1408, per_token=8)
    return with_experts(spec, fields, experts)


def _gguf_words(fields: Fields, config: dict[str, Any]) -> dict[str, Any]:
    return gguf_sigmoid_routing(fields, "glm4moe", config)


FAMILY = Family(
    name="glm4_moe",
    architectures=("Glm4MoeForCausalLM",),
    read=read,
    unsaid=sizes(151_552, 4096, 10_944, 46, 96, 131_072),
    gguf="glm4moe",
    gguf_experts=True,
    gguf_words=_gguf_words,
    gguf_reads=GGUF_ROUTING,
    partial_rotary=True,
    names=LayerNames(
        mlp_norm=Name("post_attention_layernorm", "post_attention_norm"),
        **SHARED_NAMES,
    ),
    without_effect={**ROUTER_KEYS, "num_mtp_layers": "layers that guess ahead, which are not read"},
)
