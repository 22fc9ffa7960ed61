"""Cohere2 with experts: the best few by products, shared ones that are added or averaged, and dense
layers before them, whose windows and rope may follow a rule of their own. No torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quire.families.family import Family, LayerNames, sizes
from quire.families.fields import Fields
from quire.families.mixtures import (
    ROUTER_KEYS,
    SHARED_NAMES,
    dense_layers,
    read_experts,
    with_experts,
)
from quire.families.reading import (
    num_layers,
    read_parallel,
    read_window,
    windows_by_kind,
    with_pairs_side_by_side,
)
from quire.layer_plan import ExpertsPlan, LayerPlan, MlpPlan, NormPlan
from quire.spec import ModelSpec

SOFTMAX, SIGMOID = "softmax", "sigmoid"
AVERAGE, SUM = "average", "sum"


def read(fields: Fields) -> ModelSpec:
    width, eps = fields.count("intermediate_size"), fields.optional("rms_norm_eps")
    first = fields.whole("first_k_dense_replace", 0)
    dense = dense_layers(fields, first)
    before = fields.count("prefix_dense_sliding_window_pattern", 1)
    spec = read_parallel(
        fields,
        head_dim=128,
        norm=None if eps is None else NormPlan(eps),
        windows=_windows(fields, first, before),
        mlp=MlpPlan(fields.count("prefix_dense_intermediate_size", width)),
    )

    def turned(index: int, layer: LayerPlan) -> LayerPlan:
        """Only with a window, or as a dense layer under a rule that gives it none."""
        turns = layer.attention.window is not None or (index in dense and before == 1)
        return layer if turns else replace(layer, attention=replace(layer.attention, rope=None))

    layers = tuple(turned(*pair) for pair in enumerate(spec.layers))
    spec = with_pairs_side_by_side(replace(spec, layers=layers))
    listed = Fields({"mlp_only_layers": dense}, fields.source)
    return with_experts(spec, listed, _experts(fields, width))


def _windows(fields: Fields, first: int, before: int) -> tuple[int | None, ...]:
    """Without a list, all layers but the last of every few have a window; the `first` ones count by
    themselves."""
    window, period = read_window(fields), fields.count("sliding_window_pattern", 4)
    places = [(i, before) if i < first else (i - first, period) for i in range(num_layers(fields))]
    usual = tuple(window if (at + 1) % every else None for at, every in places)
    return windows_by_kind(fields, window) or usual


def _experts(fields: Fields, width: int) -> ExpertsPlan:
    by, normed = fields.word("expert_selection_fn", SOFTMAX), fields.flag("norm_topk_prob", True)
    # A softmax of the best few is a softmax of all whose best few are scaled to add up to 1.
    plan: dict[str, Any] = {"score": by, "renormalise": by == SOFTMAX or normed}
    count = fields.whole("num_shared_experts", 0)
    is_average = fields.word("shared_expert_combination_strategy", AVERAGE) == AVERAGE
    if count:
        part = 0.5 if is_average else 1.0
        shared = {"shared": MlpPlan(count * width), "shared_gate": False, "shared_factor": part}
        plan |= {**shared, "factor": part}
    return read_experts(fields, width, count=8, per_token=2, **plan)


FAMILY = Family(
    name="cohere2_moe",
    architectures=("Cohere2MoeForCausalLM",),
    read=read,
    unsaid=sizes(256_000, 8192, 22_528, 40, 64, 8192),
    names=LayerNames(**SHARED_NAMES),
    without_effect=ROUTER_KEYS,
    only={
        "expert_selection_fn": (SOFTMAX, SIGMOID),
        "shared_expert_combination_strategy": (AVERAGE, SUM),
    },
)
