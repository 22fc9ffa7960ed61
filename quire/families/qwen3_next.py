"""Qwen3-Next: three layers of Gated DeltaNet to one of attention with an output gate, norms of 1 +
w, rope on a quarter of each head, experts and a shared expert. No torch."""

from __future__ import annotations

from functools import partial

from quire.families.family import Family, LayerNames, Name, sizes
from quire.families.fields import Fields
from quire.families.hybrids import (
    GGUF_READS,
    MLP_NORM,
    hybrid_words,
    read_gated_experts,
    read_hybrid,
)
from quire.families.mixtures import ROUTER_KEYS, with_experts
from quire.layer_plan import MlpPlan
from quire.spec import ModelSpec


def read(fields: Fields) -> ModelSpec:
    mlp = MlpPlan(fields.count("intermediate_size", 5632))
    spec = read_hybrid(fields, kv_heads=2, mlp=mlp)
    renormalise = fields.flag("norm_topk_prob", True)
    experts = read_gated_experts(fields, count=512, per_token=10, renormalise=renormalise)
    return with_experts(spec, fields, experts)


FAMILY = Family(
    name="qwen3_next",
    architectures=("Qwen3NextForCausalLM",),
    read=read,
    unsaid=sizes(151_936, 2048, 5632, 48, 16, 32_768),
    gguf="qwen3next",
    gguf_experts=True,
    gguf_words=partial(hybrid_words, in_turn=False),
    gguf_reads=GGUF_READS,
    partial_rotary=True,
    names=LayerNames(
        mlp_norm=MLP_NORM,
        qkvz=(
            Name("linear_attn.in_proj_qkvz", "attn_qkv"),
            Name("linear_attn.in_proj_qkvz", "attn_gate"),
        ),
        rates=(Name("linear_attn.in_proj_ba", "ssm_ba"),),
    ),
    without_effect=ROUTER_KEYS,
)
