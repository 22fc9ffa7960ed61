"""Qwen3-MoE: q and k normed head by head, experts as feed-forwards. No torch."""

from __future__ import annotations

from quire.families.family import Family, sizes
from quire.families.fields import Fields
from quire.families.mixtures import ROUTER_KEYS, read_experts, with_experts
from quire.families.reading import read_biases, read_heads, read_plain_decoder, read_window
from quire.spec import ModelSpec


def read(
    fields: Fields,
    *,
    kv_heads: int = 4,
    width: int = 768,
    count: int = 128,
    per_token: int = 8,
    renormalise: bool = False,
) -> ModelSpec:
    """The arguments are defaults: KV heads, the width of an expert, their number, how many of them
    a token has, and whether the weights of these are made to add up to 1."""
    window = read_window(fields) if fields.flag("use_sliding_window", False) else None
    spec = read_plain_decoder(
        fields,
        read_heads(fields, kv_heads=kv_heads),
        **read_biases(fields),
        qk_norm=True,
        window=window,
    )
    width = fields.count("moe_intermediate_size", width)
    renormalise = fields.flag("norm_topk_prob", renormalise)
    experts = read_experts(fields, width, count=count, per_token=per_token, renormalise=renormalise)
    return with_experts(spec, fields, experts)


FAMILY = Family(
    name="qwen3_moe",
    architectures=("Qwen3MoeForCausalLM",),
    read=read,
    unsaid=sizes(151_936, 2048, 6144, 24, 32, 32_768),
    gguf="qwen3moe",
    gguf_experts=True,
    # GGUF files do not have it, and other programs that run them renormalise.
    gguf_words=lambda fields, config: {"norm_topk_prob": True},
    without_effect=ROUTER_KEYS,
)
