"""Granite-MoE: the factors of Granite, and experts as feed-forwards. No torch."""

from __future__ import annotations

from quire.families import granite
from quire.families.family import Family, LayerNames, Name, sizes
from quire.families.fields import Fields
from quire.families.mixtures import ROUTER_KEYS, read_experts, with_experts
from quire.spec import ModelSpec


def read(fields: Fields) -> ModelSpec:
    width = fields.count("intermediate_size")
    experts = read_experts(fields, width, count=8, per_token=2, renormalise=True)
    return with_experts(granite.read(fields), fields, experts)


INPUT = "block_sparse_moe.input_linear"
FAMILY = Family(
    name="granitemoe",
    architectures=("GraniteMoeForCausalLM",),
    read=read,
    unsaid=sizes(32_000, 4096, 11_008, 32, 32, 2048),
    gguf="granitemoe",
    gguf_experts=True,
    gguf_interleaved=True,
    gguf_words=granite.gguf_factors,
    gguf_reads=granite.GGUF_FACTORS,
    names=LayerNames(
        router=Name("block_sparse_moe.router.layer", "ffn_gate_inp"),
        expert_gate_up=(
            Name(INPUT, "ffn_gate_exps", stacked=True),
            Name(INPUT, "ffn_up_exps", stacked=True),
        ),
        expert_down=Name("block_sparse_moe.output_linear", "ffn_down_exps", stacked=True),
    ),
    without_effect=ROUTER_KEYS,
)
