"""Granite-MoE: the factors of Granite, and experts as feed-forwards, with a shared one or none. No
torch."""

from __future__ import annotations

from typing import Any

from quire.families import granite
from quire.families.family import Family, LayerNames, Name, sizes
from quire.families.fields import Fields
from quire.families.mixtures import ROUTER_KEYS, read_experts, with_experts
from quire.layer_plan import MlpPlan
from quire.spec import ModelSpec


def read(fields: Fields, **given: Any) -> ModelSpec:
    """`given`: more arguments of read_plain_decoder."""
    width, shared = fields.count("intermediate_size"), fields.whole("shared_intermediate_size", 0)
    experts = read_experts(
        fields,
        width,
        count=8,
        per_token=2,
        renormalise=True,
        shared=MlpPlan(shared) if shared else None,
        shared_gate=False,
    )
    return with_experts(granite.read(fields, **given), fields, experts)


def _gguf_words(fields: Fields, config: dict[str, Any]) -> dict[str, Any]:
    shared = fields.whole(f"granitemoe.{SHARED_WIDTH}", 0)
    return {**granite.gguf_factors(fields, config), "shared_intermediate_size": shared}


SHARED_WIDTH = "expert_shared_feed_forward_length"
ROUTER, EXPERTS = "block_sparse_moe.router", "block_sparse_moe.experts"
INPUT, SHARED_INPUT = "block_sparse_moe.input_linear", "shared_mlp.input_linear"
FAMILY = Family(
    name="granitemoe",
    architectures=("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"),
    model_types=("granitemoe", "granitemoeshared"),
    read=read,
    unsaid=sizes(32_000, 4096, 11_008, 32, 32, 2048),
    gguf="granitemoe",
    gguf_experts=True,
    gguf_interleaved=True,
    gguf_words=_gguf_words,
    gguf_reads=(*granite.GGUF_FACTORS, SHARED_WIDTH),
    names=LayerNames(
        router=Name(
            "block_sparse_moe.router.layer", "ffn_gate_inp", hf_also="block_sparse_moe.router"
        ),
        expert_gate_up=(
            Name(INPUT, "ffn_gate_exps", stacked=True),
            Name(INPUT, "ffn_up_exps", stacked=True),
        ),
        expert_down=Name("block_sparse_moe.output_linear", "ffn_down_exps", stacked=True),
        expert_stacks=(f"{EXPERTS}.gate_up_proj", f"{EXPERTS}.down_proj"),
        shared_gate_up=(
            Name(SHARED_INPUT, "ffn_gate_shexp"),
            Name(SHARED_INPUT, "ffn_up_shexp"),
        ),
        shared_down=Name("shared_mlp.output_linear", "ffn_down_shexp"),
    ),
    without_effect=ROUTER_KEYS,
)
