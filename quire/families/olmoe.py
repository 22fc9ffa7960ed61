"""OLMoE: q and k normed over all heads, experts in place of feed-forwards. No torch."""

from __future__ import annotations

from quire.families.family import Family, sizes
from quire.families.fields import Fields
from quire.families.mixtures import ROUTER_KEYS, read_experts, with_experts
from quire.families.reading import read_biases, read_heads, read_plain_decoder
from quire.spec import ModelSpec


def read(fields: Fields) -> ModelSpec:
    spec = read_plain_decoder(
        fields,
        read_heads(fields),
        norm_eps=1e-5,
        qk_norm=True,
        qk_norm_over="width",
        clip=fields.optional("clip_qkv"),
        **read_biases(fields),
    )
    width = fields.count("intermediate_size")
    renormalise = fields.flag("norm_topk_prob", False)
    experts = read_experts(fields, width, count=64, per_token=8, renormalise=renormalise)
    return with_experts(spec, fields, experts)


FAMILY = Family(
    name="olmoe",
    architectures=("OlmoeForCausalLM",),
    read=read,
    unsaid=sizes(50_304, 2048, 2048, 16, 16, 4096),
    gguf="olmoe",
    gguf_experts=True,
    without_effect=ROUTER_KEYS,
)
