"""What configs of later families say in words of their own."""

from __future__ import annotations

from typing import Any

import pytest

from quire.errors import CorruptModel, UnsupportedModel
from quire.layer_plan import ExpertsPlan
from quire.weights.hf_config import spec_from_hf

TINY: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 96,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


def test_published_minimax_files_say_how_many_numbers_rotate() -> None:
    named = {**TINY, "architectures": ["MiniMaxM2ForCausalLM"], "head_dim": 16}
    assert spec_from_hf(named).rope.dims == 16
    assert spec_from_hf({**named, "rotary_dim": 8}).rope.dims == 8
    part = {"partial_rotary_factor": 0.25}  # the newer spelling wins, as in Transformers
    assert spec_from_hf({**named, "rotary_dim": 8, "rope_parameters": part}).rope.dims == 4


def test_dots_says_its_numbers_of_experts() -> None:
    """The class has no defaults for them."""
    experts = {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2}
    named = {**TINY, "architectures": ["Dots1ForCausalLM"]}
    assert spec_from_hf({**named, **experts})
    for key in experts:
        with pytest.raises(CorruptModel, match=f"{key} is missing"):
            spec_from_hf({**named, **experts, key: None})


def test_exaone_without_windows_rotates_every_layer() -> None:
    """With windows only the layers that have one; a word beside the list of layers is not read."""
    named = {**TINY, "architectures": ["Exaone4ForCausalLM"], "sliding_window": 9}
    turned = [one.attention.rope is not None for one in spec_from_hf(named).layers]
    assert turned == [True, True, True, False]
    without = spec_from_hf({**named, "sliding_window": None})
    assert without.windows == (None,) * 4
    assert all(one.attention.rope is not None for one in without.layers)
    kinds = ["sliding_attention", "full_attention"] * 2
    listed = spec_from_hf({**named, "layer_types": kinds, "sliding_window_pattern": "LG"})
    assert listed.windows == (9, None, 9, None)
    with pytest.raises(CorruptModel, match="sliding_window_pattern must be a whole number"):
        spec_from_hf({**named, "sliding_window_pattern": "LLLG"})


@pytest.mark.parametrize("first", [0, 3, 1 << 62])
def test_first_layers_without_experts_may_be_more_than_there_are(first: int) -> None:
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    named = {**TINY, **experts, "architectures": ["ExaoneMoeForCausalLM"]}
    layers = spec_from_hf({**named, "first_k_dense_replace": first}).layers
    assert [isinstance(one.mlp, ExpertsPlan) for one in layers].count(False) == min(first, 4)


def test_a_cwm_window_of_0_is_none() -> None:
    named = {**TINY, "architectures": ["CwmForCausalLM"]}
    assert spec_from_hf(named).windows == (None, 8192, 8192, 8192)
    assert spec_from_hf({**named, "sliding_window": 0}).windows == (None,) * 4


def test_hunyuan_stretches_theta_by_alpha() -> None:
    named = {**TINY, "architectures": ["HunYuanDenseV1ForCausalLM"]}
    rope = {"type": "dynamic", "alpha": 1000.0, "factor": 1.0, "rope_theta": 10_000.0}
    found = spec_from_hf({**named, "rope_scaling": rope}).rope
    assert found.theta == 10_000.0 * 1000.0 ** (16 / 14)
    assert found.scaling is None


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "dynamic", "factor": 2.0},  # depends on the length of a text
        # Heads become longer, which norms behind would undo.
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    ],
)
def test_hunyuan_refuses_other_ropes_by_name(rope: dict[str, Any]) -> None:
    named = {**TINY, "architectures": ["HunYuanDenseV1ForCausalLM"]}
    with pytest.raises(UnsupportedModel, match="rope"):
        spec_from_hf({**named, "rope_scaling": rope})
    if rope["rope_type"] == "yarn":
        assert spec_from_hf({**named, "rope_scaling": {**rope, "attention_factor": 1.0}})


def test_hunyuan_says_how_many_experts_by_layer_or_for_all() -> None:
    named = {**TINY, "architectures": ["HunYuanMoEV1ForCausalLM"], "num_experts": 4}
    for said, expected in ((2, [2, 2, 2, 2]), ([1, 2, 3, 4], [1, 2, 3, 4]), (None, [1] * 4)):
        layers = spec_from_hf({**named, "moe_topk": said}).layers
        assert [getattr(one.mlp, "per_token", None) for one in layers] == expected
    for wrong in ([1, 2], [1, 2, 3, 5], 5, 0, "2"):
        with pytest.raises(CorruptModel, match="moe_topk"):
            spec_from_hf({**named, "moe_topk": wrong})
