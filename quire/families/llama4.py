"""Llama 4: rope and norms without weights on three layers of four, larger queries at far positions
on the fourth, and experts that read each token times the sigmoid of its score. No torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quire.families.chunks import IN_GGUF, with_chunks
from quire.families.family import Family, LayerNames, Name, sizes
from quire.families.fields import Fields
from quire.families.mixtures import ROUTER_KEYS, read_experts, with_experts
from quire.families.reading import (
    read_biases,
    read_heads,
    read_plain_decoder,
    read_turned,
    with_pairs_side_by_side,
)
from quire.families.rope_config import read_rope
from quire.layer_plan import AttentionPlan, MlpPlan, NormPlan, QueryGrowth
from quire.spec import ModelSpec

# Of others norms behind the rotation would take away a factor of cos and sin.
ROPE_KINDS = {"llama3": "llama3", "linear": "linear"}


def read(fields: Fields) -> ModelSpec:
    heads = read_heads(fields, kv_heads=8, head_dim=128)
    spec = read_plain_decoder(
        fields,
        heads,
        rope=read_rope(fields, heads.head_dim, kinds=ROPE_KINDS, theta=500_000.0),
        norm_eps=1e-5,
        mlp=MlpPlan(fields.count("intermediate_size_mlp", 16_384)),
        **read_biases(fields),
    )
    normed = fields.flag("use_qk_norm", True)
    norm = NormPlan(spec.norm.eps, learned=False) if normed else None
    growth, turned = _growth(fields), read_turned(fields)

    def of(one: AttentionPlan, turns: bool) -> AttentionPlan:
        if turns:
            return replace(one, qk_norm=norm, qk_norm_behind=normed)
        return replace(one, rope=None, query_growth=growth)

    pairs = zip(spec.layers, turned, strict=True)
    layers = tuple(replace(one, attention=of(one.attention, turns)) for one, turns in pairs)
    spec = with_pairs_side_by_side(with_chunks(replace(spec, layers=layers), fields, turned))
    return _with_experts(spec, fields)


def _growth(fields: Fields) -> QueryGrowth | None:
    beta, length = fields.not_negative("attn_scale", 0.1), fields.count("floor_scale", 8192)
    grows = fields.flag("attn_temperature_tuning", True) and beta > 0
    return QueryGrowth(beta, length, first=1) if grows else None


def _with_experts(spec: ModelSpec, fields: Fields) -> ModelSpec:
    width, listed = fields.count("intermediate_size"), fields.values.get("moe_layers")
    shared: dict[str, Any] = {"shared": MlpPlan(width), "shared_gate": False}
    own: dict[str, Any] = {"score": "sigmoid", "scores_inputs": True, **shared}
    experts = read_experts(fields, width, count=16, per_token=1, **own)
    if listed is None:
        step = {"decoder_sparse_step": "interleave_moe_layer_step"}
        return with_experts(spec, fields.under(step), experts)
    if not isinstance(listed, list):
        raise fields.wrong("moe_layers", "a list of layers")
    dense = [layer for layer in range(spec.num_layers) if layer not in listed]
    return with_experts(spec, Fields({"mlp_only_layers": dense}, fields.source), experts)


PART = "feed_forward"
GATE_UP = f"{PART}.experts.gate_up_proj"
STORED: dict[str, Any] = {"bare": True, "transposed": True, "stacked": True}
FAMILY = Family(
    name="llama4",
    architectures=("Llama4ForCausalLM", "Llama4ForConditionalGeneration"),
    model_types=("llama4_text", "llama4"),
    read=read,
    unsaid=sizes(202_048, 5120, 8192, 48, 40, 131_072),
    gguf="llama4",
    **IN_GGUF,
    names=LayerNames(
        gate_up=(Name(f"{PART}.gate_proj", "ffn_gate"), Name(f"{PART}.up_proj", "ffn_up")),
        down=Name(f"{PART}.down_proj", "ffn_down"),
        router=Name(f"{PART}.router", "ffn_gate_inp"),
        expert_gate_up=(
            Name(GATE_UP, "ffn_gate_exps", **STORED),
            Name(GATE_UP, "ffn_up_exps", **STORED),
        ),
        expert_down=Name(f"{PART}.experts.down_proj", "ffn_down_exps", **STORED),
        shared_gate_up=(
            Name(f"{PART}.shared_expert.gate_proj", "ffn_gate_shexp"),
            Name(f"{PART}.shared_expert.up_proj", "ffn_up_shexp"),
        ),
        shared_down=Name(f"{PART}.shared_expert.down_proj", "ffn_down_shexp"),
    ),
    without_effect={**ROUTER_KEYS, "router_jitter_noise": "training"},
)
