"""Configs of Gemma 3n: what they leave out, and what is refused by name."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import pytest

from quire.errors import CorruptModel, UnsupportedModel
from quire.layer_plan import MlpPlan, SparsePlan
from quire.spec import ModelSpec
from quire.weights.hf_config import spec_from_hf

SMALL: dict[str, Any] = {
    "architectures": ["Gemma3nForCausalLM"],
    "model_type": "gemma3n_text",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_kv_shared_layers": 1,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}


def spec(**more: Any) -> ModelSpec:
    return spec_from_hf(SMALL | more)


def test_a_pattern_says_the_cutoff_of_each_layer() -> None:
    found = spec(
        activation_sparsity_pattern=[0.95, 0.0, 0.5, 0.25], intermediate_size=[8, 16, 24, 8]
    )
    plans = [layer.mlp for layer in found.layers]
    cutoffs = [
        None if share == 0 else NormalDist().inv_cdf(share) for share in (0.95, 0, 0.5, 0.25)
    ]
    for plan, width, cutoff in zip(plans, (8, 16, 24, 8), cutoffs, strict=True):
        assert isinstance(plan, MlpPlan) and plan.width == width
        assert plan.sparse == (None if cutoff is None else SparsePlan(cutoff, width))


def test_without_a_pattern_ten_layers_have_a_cutoff_of_models_with_more() -> None:
    named = {"layer_types": None, "num_kv_shared_layers": 0}
    for count, sparse in ((10, 0), (11, 10)):
        plans = [layer.mlp for layer in spec(**named, num_hidden_layers=count).layers]
        assert [isinstance(p, MlpPlan) and p.sparse is not None for p in plans] == [
            i < sparse for i in range(count)
        ]


@pytest.mark.parametrize(
    ("more", "rule"),
    [
        ({"altup_active_idx": 4}, "altup_active_idx must be below 4, the number of streams"),
        ({"altup_num_inputs": 0}, "altup_num_inputs must be a whole number from 1"),
        ({"activation_sparsity_pattern": [0.5]}, "must be a list of 4 numbers"),
        ({"activation_sparsity_pattern": [1.0, 0, 0, 0]}, "numbers from 0 to below 1"),
        ({"activation_sparsity_pattern": [-0.5, 0, 0, 0]}, "finite number above 0"),
        ({"intermediate_size": [8, 8]}, "intermediate_size must be a list of 4 numbers"),
        ({"intermediate_size": [8, 8, 0, 8]}, "intermediate_size must be a whole number from 1"),
        ({"num_kv_shared_layers": 4}, "leaves no layer of sliding_attention"),
        ({"hidden_size_per_layer_input": 0}, "hidden_size_per_layer_input must be a whole number"),
    ],
)
def test_what_cannot_be_is_refused_with_the_rule(more: dict[str, Any], rule: str) -> None:
    with pytest.raises(CorruptModel, match=rule):
        spec(**more)


@pytest.mark.parametrize(
    "more", [{"altup_correct_scale": False}, {"hidden_activation": "silu"}, {"hidden_act": "gelu"}]
)
def test_what_quire_does_not_have_is_refused_by_name(more: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModel, match=next(iter(more))):
        spec(**more)
