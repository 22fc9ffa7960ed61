"""Glm4Moe: half of each head turned, experts chosen by the sigmoids of their scores and a bias, one
that every token takes, and first layers without any. No torch."""

from __future__ import annotations

from typing import Any

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


GGUF_READS = (
    *("expert_shared_count", "leading_dense_block_count", "expert_gating_func"),
    *("expert_weights_scale", "expert_weights_norm", "expert_group_count"),
    *("expert_group_used_count", "nextn_predict_layers"),
)


def _gguf_words(fields: Fields, config: dict[str, Any]) -> dict[str, Any]:
    said = Fields({key: fields.values.get(f"glm4moe.{key}") for key in GGUF_READS}, fields.source)
    if said.count("expert_gating_func", 2) != 2:
        raise said.wrong("expert_gating_func", "2, which means sigmoids")
    ahead = said.values.get("nextn_predict_layers") or 0  # layers that guess ahead, at the end
    return {
        "num_hidden_layers": config["num_hidden_layers"] - int(ahead),
        "n_shared_experts": said.count("expert_shared_count", 1),
        "first_k_dense_replace": said.values.get("leading_dense_block_count") or 0,
        "routed_scaling_factor": said.positive("expert_weights_scale", 1.0),
        "norm_topk_prob": said.flag("expert_weights_norm", True),
        "n_group": said.count("expert_group_count", 1),
        "topk_group": said.count("expert_group_used_count", 1),
    }


FAMILY = Family(
    name="glm4_moe",
    architectures=("Glm4MoeForCausalLM",),
    model_types=("glm4_moe",),
    read=read,
    gguf="glm4moe",
    gguf_experts=True,
    gguf_words=_gguf_words,
    gguf_reads=GGUF_READS,
    partial_rotary=True,
    names=LayerNames(
        mlp_norm=Name("post_attention_layernorm", "post_attention_norm"),
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
