"""The text model of Qwen3.5 with experts and a shared expert as feed-forwards. No torch."""

from __future__ import annotations

from functools import partial

from quire.families.axes import read_with_axes
from quire.families.family import Family, LayerNames, sizes
from quire.families.fields import Fields
from quire.families.hybrids import (
    GGUF_READS,
    MLP_NORM,
    SECTIONS,
    hybrid_words,
    read_gated_experts,
    read_hybrid,
)
from quire.families.mixtures import ROUTER_KEYS
from quire.spec import ModelSpec


def read_text(fields: Fields) -> ModelSpec:
    experts = read_gated_experts(fields, count=256, per_token=8)
    return read_hybrid(fields, kv_heads=2, mlp=experts)


FAMILY = Family(
    name="qwen3_5_moe",
    architectures=("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"),
    model_types=("qwen3_5_moe_text", "qwen3_5_moe"),
    read=partial(read_with_axes, read=read_text, unsaid=SECTIONS, interleaved=True),
    unsaid=sizes(248_320, 2048, 0, 40, 16, 32_768),
    gguf="qwen35moe",
    gguf_experts=True,
    gguf_words=partial(hybrid_words, in_turn=True),
    gguf_reads=GGUF_READS,
    partial_rotary=True,
    names=LayerNames(
        mlp_norm=MLP_NORM,
        expert_stacks=("mlp.experts.gate_up_proj", "mlp.experts.down_proj"),
    ),
    without_effect=ROUTER_KEYS,
)
