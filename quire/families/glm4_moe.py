"""Glm4Moe: half of each head turned, experts chosen by the sigmoids of their scores and a bias, one
that every token takes, and first layers without any. No torch."""

from __future__ import annotations

from quire.families.family import Family, LayerNames, Name
from quire.families.fields import Fields
from quire.families.mixtures import read_sigmoid_experts, with_experts
from quire.families.reading import read_heads, read_plain_decoder
from quire.families.rope_config import read_rope
from quire.spec import ModelSpec


def read(fields: Fields) -> ModelSpec:
    fields = fields.under({}, first_k_dense_replace=1)
    heads = read_heads(fields, kv_heads=8)
    spec = read_plain_decoder(
        "glm4_moe",
        fields,
        heads,
        rope=read_rope(fields, heads.head_dim, partial=True, factor=0.5),
        norm_eps=1e-5,
        qkv_bias=fields.flag("attention_bias", False),
        qk_norm=fields.flag("use_qk_norm", False),
    )
    experts = read_sigmoid_experts(fields, count=128, width=1408, per_token=8)
    return with_experts(spec, fields, experts)


FAMILY = Family(
    name="glm4_moe",
    architectures=("Glm4MoeForCausalLM",),
    model_types=("glm4_moe",),
    read=read,
    partial_rotary=True,
    names=LayerNames(
        shared_gate_up=(
            Name("mlp.shared_experts.gate_proj", "ffn_gate_shexp"),
            Name("mlp.shared_experts.up_proj", "ffn_up_shexp"),
        ),
        shared_down=Name("mlp.shared_experts.down_proj", "ffn_down_shexp"),
    ),
    without_effect={
        "output_router_logits": "what a call returns",
        "num_mtp_layers": "layers that guess ahead, which are not read",
    },
)
