"""Granite-MoE: the factors of its dense models, and experts in place of feed-forwards. No torch."""

from __future__ import annotations

from quire.families.family import Family, LayerNames, Name, sizes
from quire.families.fields import Fields
from quire.families.granite import GGUF_FACTORS, gguf_factors
from quire.families.mixtures import ROUTER_KEYS, read_experts, with_experts
from quire.families.reading import read_biases, read_heads, read_plain_decoder
from quire.spec import LogitsPlan, ModelSpec


def read(fields: Fields) -> ModelSpec:
    spec = read_plain_decoder(
        "granitemoe",
        fields,
        read_heads(fields),
        scale=fields.positive("attention_multiplier", 1.0),
        **read_biases(fields),
        layer={"branch_scale": fields.positive("residual_multiplier", 1.0)},
        facts={
            "embedding_scale": fields.positive("embedding_multiplier", 1.0),
            "logits": LogitsPlan(scale=1 / fields.positive("logits_scaling", 1.0)),
        },
    )
    width = fields.count("intermediate_size")
    experts = read_experts(fields, width, count=8, per_token=2, renormalise=True)
    return with_experts(spec, fields, experts)


INPUT = "block_sparse_moe.input_linear"
FAMILY = Family(
    name="granitemoe",
    architectures=("GraniteMoeForCausalLM",),
    read=read,
    unsaid=sizes(32_000, 4096, 11_008, 32, 32, 2048),
    gguf="granitemoe",
    gguf_experts=True,
    gguf_interleaved=True,
    gguf_words=gguf_factors,
    gguf_reads=GGUF_FACTORS,
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
