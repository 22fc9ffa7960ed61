"""What the configs of mixtures share: which layers have experts, and how many. No torch."""

from __future__ import annotations

from dataclasses import replace

from quire.families.fields import Fields
from quire.layer_plan import ExpertsPlan
from quire.spec import ModelSpec

MAX_EXPERTS = 65_536


def read_count(fields: Fields, default: int) -> int:
    """How many experts there are, by either of the names that configs have for it."""
    return fields.count(
        "num_experts", fields.values.get("num_local_experts") or default, most=MAX_EXPERTS
    )


def with_experts(spec: ModelSpec, fields: Fields, experts: ExpertsPlan) -> ModelSpec:
    """The spec with experts in every `decoder_sparse_step`-th layer, but for `mlp_only_layers`."""
    if experts.per_token > experts.count:
        raise fields.wrong("num_experts_per_tok", f"at most {experts.count}, which there are")
    step, dense = fields.count("decoder_sparse_step", 1), fields.values.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(isinstance(layer, int) for layer in dense):
        raise fields.wrong("mlp_only_layers", "a list of layers")
    layers = (
        layer if index in dense or (index + 1) % step else replace(layer, mlp=experts)
        for index, layer in enumerate(spec.layers)
    )
    return replace(spec, layers=tuple(layers))
