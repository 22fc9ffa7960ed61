"""The text of Qwen3.5 with experts, and one that every token takes, as feed-forwards. No torch."""

from __future__ import annotations

from quire.families.family import Family
from quire.families.fields import Fields
from quire.families.hybrids import read_gated_experts, read_hybrid
from quire.spec import ModelSpec


def read(fields: Fields) -> ModelSpec:
    experts = read_gated_experts(fields, count=256, per_token=8)
    return read_hybrid("qwen3_5_moe", fields, kv_heads=2, mlp=experts)


FAMILY = Family(
    name="qwen3_5_moe",
    architectures=("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"),
    model_types=("qwen3_5_moe_text", "qwen3_5_moe"),
    read=read,
    partial_rotary=True,
    without_effect={
        "output_router_logits": "what a call returns",
        "router_aux_loss_coef": "training",
    },
)
