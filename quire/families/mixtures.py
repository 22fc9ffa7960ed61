"""What the configs of mixtures share: which layers have experts, and how many. No torch."""

from __future__ import annotations

from dataclasses import replace

from quire.families.fields import Fields
from quire.layer_plan import ExpertsPlan, MlpPlan
from quire.spec import ModelSpec

MAX_EXPERTS = 65_536


def read_count(fields: Fields, default: int) -> int:
    """How many experts there are, by either of the names that configs have for it."""
    return fields.count(
        "num_experts", fields.values.get("num_local_experts") or default, most=MAX_EXPERTS
    )


def read_sigmoid_experts(fields: Fields, *, count: int, width: int, per_token: int) -> ExpertsPlan:
    """Experts that are chosen by sigmoids and a bias, from the best groups of them, and one that
    every token takes; the arguments are those of a config that does not say them."""
    one = fields.count("moe_intermediate_size", width)
    experts, groups = _routed(fields, count), fields.count("n_group", 1)
    if experts % groups or (groups > 1 and experts // groups < 2):
        raise fields.wrong("n_group", f"a divisor of the {experts} experts, 2 or more in each")
    return ExpertsPlan(
        experts,
        fields.count("num_experts_per_tok", per_token),
        MlpPlan(one),
        renormalise=fields.flag("norm_topk_prob", True),
        shared=MlpPlan(one * fields.count("n_shared_experts", 1)),
        shared_gate=False,
        score="sigmoid",
        choice_bias=True,
        groups=groups,
        groups_taken=fields.count("topk_group", 1, most=groups),
        factor=fields.positive("routed_scaling_factor", 1.0),
    )


def _routed(fields: Fields, default: int) -> int:
    return fields.count("n_routed_experts", default, most=MAX_EXPERTS)


def with_experts(spec: ModelSpec, fields: Fields, experts: ExpertsPlan) -> ModelSpec:
    """The spec with experts in every `decoder_sparse_step`-th layer, but for `mlp_only_layers` and
    the first `first_k_dense_replace`."""
    if experts.per_token > experts.count:
        raise fields.wrong("num_experts_per_tok", f"at most {experts.count}, which there are")
    step, dense = fields.count("decoder_sparse_step", 1), fields.values.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(isinstance(layer, int) for layer in dense):
        raise fields.wrong("mlp_only_layers", "a list of layers")
    first = _dense_before(fields)
    layers = (
        layer
        if index < first or index in dense or (index + 1) % step
        else replace(layer, mlp=experts)
        for index, layer in enumerate(spec.layers)
    )
    return replace(spec, layers=tuple(layers))


def _dense_before(fields: Fields) -> int:
    """How many layers come before the first with experts."""
    said = fields.values.get("first_k_dense_replace")
    if said is None:
        return 0
    if isinstance(said, bool) or not isinstance(said, int) or said < 0:
        raise fields.wrong("first_k_dense_replace", "a whole number from 0")
    return said
