"""Reads configs of mixtures of experts: layers that have them, number and choice. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from quire.families.family import Name
from quire.families.fields import Fields
from quire.layer_plan import Activation, ExpertsPlan, MlpPlan, NormPlan
from quire.spec import ModelSpec

MAX_EXPERTS = 65_536
FACTORS = "expert_factors"  # a key of ours: whether they are weights of their own
# Keys of a config that do not change results, and why.
ROUTER_KEYS: Mapping[str, str] = {
    "output_router_logits": "what a call returns",
    "router_aux_loss_coef": "training",
}
# Names of the shared expert in some files.
SHARED_NAMES: Mapping[str, Any] = {
    "shared_gate_up": (
        Name("mlp.shared_experts.gate_proj", "ffn_gate_shexp"),
        Name("mlp.shared_experts.up_proj", "ffn_up_shexp"),
    ),
    "shared_down": Name("mlp.shared_experts.down_proj", "ffn_down_shexp"),
}


def read_count(fields: Fields, default: int) -> int:
    """The number of experts, under either name of the key."""
    return fields.count(
        "num_experts", fields.values.get("num_local_experts") or default, most=MAX_EXPERTS
    )


def read_experts(
    fields: Fields, width: int, *, count: int, per_token: int, **others: Any
) -> ExpertsPlan:
    """Experts of this width. `count` and `per_token` are defaults, `others` fields of the plan."""
    chosen = fields.count("num_experts_per_tok", per_token)
    return ExpertsPlan(read_count(fields, count), chosen, MlpPlan(width), **others)


def read_routed_experts(
    fields: Fields, *, count: int, width: int, per_token: int, **others: Any
) -> ExpertsPlan:
    """Experts chosen by sigmoids and a bias within the best groups, and a shared expert. The
    arguments are defaults; `others` are fields of the plan that override the config."""
    one = fields.count("moe_intermediate_size", width)
    experts = fields.count("n_routed_experts", count, most=MAX_EXPERTS)
    groups = others.get("groups") or fields.count("n_group", 1)
    if experts % groups or (groups > 1 and experts // groups < 2):
        raise fields.wrong("n_group", f"a divisor of the {experts} experts, 2 or more in each")
    taken = others.get("groups_taken") or fields.count("topk_group", 1, most=groups)
    chosen = fields.count("num_experts_per_tok", per_token, most=experts)
    if groups > 1 and chosen > taken * (experts // groups):
        raise fields.wrong("topk_group", f"of more groups: a token takes {chosen} experts")
    usual: dict[str, Any] = {
        "renormalise": fields.flag("norm_topk_prob", True),
        "shared": MlpPlan(one * fields.count("n_shared_experts", 1)),
        "shared_gate": False,
        "score": "sigmoid",
        "choice_bias": True,
        "groups": groups,
        "groups_taken": taken,
        "factor": fields.positive("routed_scaling_factor", 1.0),
    }
    return ExpertsPlan(experts, chosen, MlpPlan(one), **{**usual, **others})


def read_beside(fields: Fields, norm: NormPlan, activation: Activation) -> ExpertsPlan:
    """Experts beside a feed-forward, whose router has a norm, and each a factor of its own, which
    GGUF files have as a scale of its last product."""
    count = fields.count("num_experts", most=MAX_EXPERTS)
    return ExpertsPlan(
        count,
        fields.count("top_k_experts", most=count),
        MlpPlan(fields.count("moe_intermediate_size"), activation),
        renormalise=True,
        has_factors=fields.flag(FACTORS, True),
        router_norm=norm,
    )


# The keys of GGUF metadata for these.
GGUF_ROUTING = (
    *("expert_shared_count", "leading_dense_block_count", "expert_gating_func"),
    *("expert_weights_scale", "expert_weights_norm", "expert_group_count"),
    *("expert_group_used_count", "nextn_predict_layers"),
)
SOFTMAX, SIGMOID = 1, 2  # values of expert_gating_func


def gguf_routing(fields: Fields, arch: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Config values from a GGUF file's metadata, and `by_sigmoid`."""
    said = Fields({key: fields.values.get(f"{arch}.{key}") for key in GGUF_ROUTING}, fields.source)
    if (gate := said.count("expert_gating_func", SOFTMAX)) not in (SOFTMAX, SIGMOID):
        raise said.wrong("expert_gating_func", "1 (softmax) or 2 (sigmoids)")
    ahead = said.whole("nextn_predict_layers", 0)  # extra layers at the end, which predict ahead
    return {
        "by_sigmoid": gate == SIGMOID,
        "num_hidden_layers": config["num_hidden_layers"] - ahead,
        "n_shared_experts": said.count("expert_shared_count", 1),
        "first_k_dense_replace": said.values.get("leading_dense_block_count") or 0,
        "routed_scaling_factor": said.positive("expert_weights_scale", 1.0),
        "norm_topk_prob": said.flag("expert_weights_norm", False),  # written only if true
        "n_group": said.count("expert_group_count", 1),
        "topk_group": said.count("expert_group_used_count", 1),
    }


def gguf_sigmoid_routing(fields: Fields, arch: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """As gguf_routing, for models whose scores are sigmoids alone."""
    routing = gguf_routing(fields, arch, config)
    if not routing.pop("by_sigmoid"):
        raise fields.wrong(f"{arch}.expert_gating_func", "2, which means sigmoids")
    return routing


def dense_layers(fields: Fields, first: int) -> list[int]:
    """The layers without experts, by `mlp_layer_types`; without it so many first ones."""
    kinds, count = fields.values.get("mlp_layer_types"), fields.count("num_hidden_layers")
    if kinds is None:
        return list(range(min(first, count)))
    known = ("dense", "sparse")
    is_list = isinstance(kinds, list) and len(kinds) == count
    if not is_list or any(kind not in known for kind in kinds):
        raise fields.wrong("mlp_layer_types", f"a list of {count} names, dense or sparse")
    return [index for index, kind in enumerate(kinds) if kind == "dense"]


def with_experts(spec: ModelSpec, fields: Fields, experts: ExpertsPlan) -> ModelSpec:
    """The spec with experts in every `decoder_sparse_step`-th layer, except those in
    `mlp_only_layers` and the first `first_k_dense_replace`."""
    if experts.per_token > experts.count:
        raise fields.wrong("num_experts_per_tok", f"at most {experts.count}, which there are")
    step, dense = fields.count("decoder_sparse_step", 1), fields.values.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(isinstance(layer, int) for layer in dense):
        raise fields.wrong("mlp_only_layers", "a list of layers")
    first = fields.whole("first_k_dense_replace", 0)
    layers = (
        layer
        if index < first or index in dense or (index + 1) % step
        else replace(layer, mlp=experts)
        for index, layer in enumerate(spec.layers)
    )
    return replace(spec, layers=tuple(layers))
