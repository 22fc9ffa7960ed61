"""LFM2 with experts as feed-forwards, but in the first layers. No torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quire.families import lfm2
from quire.families.family import Family, Name, sizes
from quire.families.fields import Fields
from quire.families.hybrids import GGUF_KV, GGUF_REACH, convolving_words
from quire.families.mixtures import GGUF_ROUTING, ROUTER_KEYS, gguf_sigmoid_routing, read_experts
from quire.layer_plan import MlpPlan
from quire.spec import ModelSpec


def read(fields: Fields) -> ModelSpec:
    if not fields.values.get("layer_types"):
        raise fields.wrong("layer_types", "a list of names: full_attention or conv for each layer")
    spec = lfm2.read_convolving(fields, [], MlpPlan(fields.count("intermediate_size")))
    experts = read_experts(
        fields,
        fields.count("moe_intermediate_size", 1792),
        count=32,
        per_token=4,
        score="sigmoid",
        choice_bias=fields.flag("use_expert_bias", True),
        renormalise=fields.flag("norm_topk_prob", True),
        factor=fields.positive("routed_scaling_factor", 1.0),
    )
    if experts.per_token > experts.count:
        raise fields.wrong("num_experts_per_tok", f"at most {experts.count}, which there are")
    dense = fields.whole("num_dense_layers", 2)
    layers = (one if i < dense else replace(one, mlp=experts) for i, one in enumerate(spec.layers))
    return replace(spec, layers=tuple(layers))


def gguf_words(fields: Fields, config: dict[str, Any]) -> dict[str, Any]:
    arch = fields.word("general.architecture")
    routing = gguf_sigmoid_routing(fields, arch, config)
    return {
        **convolving_words(fields, config),
        "num_dense_layers": routing["first_k_dense_replace"],
        "routed_scaling_factor": routing["routed_scaling_factor"],
        "norm_topk_prob": True,
    }


FAMILY = Family(
    name="lfm2_moe",
    architectures=("Lfm2MoeForCausalLM",),
    read=read,
    unsaid=sizes(65_536, 2048, 7168, 32, 32, 128_000),
    names=replace(
        lfm2.NAMES,
        router=Name("feed_forward.gate", "ffn_gate_inp"),
        router_choice=Name("feed_forward.expert", "exp_probs_b", bare=True),
        expert_gate_up=(
            Name("feed_forward.experts.{}.w1", "ffn_gate_exps"),
            Name("feed_forward.experts.{}.w3", "ffn_up_exps"),
        ),
        expert_down=Name("feed_forward.experts.{}.w2", "ffn_down_exps"),
        expert_stacks=("feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj"),
    ),
    outer_names=lfm2.OUTER_NAMES,
    gguf="lfm2moe",
    gguf_experts=True,
    gguf_words=gguf_words,
    gguf_reads=(GGUF_REACH, *GGUF_ROUTING),
    gguf_by_layer=(GGUF_KV,),
    without_effect=ROUTER_KEYS,
)
