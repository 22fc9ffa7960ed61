"""What configs of later families say in words of their own."""

from __future__ import annotations

from typing import Any

import pytest
from transformers.models.olmo_hybrid import OlmoHybridConfig

from quire.errors import CorruptModel, UnsupportedModel
from quire.families.chunks import chunk_of, within_a_chunk
from quire.families.rope_config import for_length
from quire.layer_parts.rope import FactorRope, Llama3Rope, YarnRope
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


def test_both_sets_of_factors_of_phimoe_have_a_factor_of_their_own() -> None:
    """Transformers takes the second of these numbers, but never the second set."""
    sets = {f"{one}_factor": [1.0 + i] * 8 for i, one in enumerate(("short", "long"))}
    rope = {"type": "su", **sets, "short_mscale": 1.25, "long_mscale": 1.5}
    named = {**TINY, "architectures": ["PhimoeForCausalLM"], "original_max_position_embeddings": 64}
    short = spec_from_hf({**named, "rope_scaling": rope})
    assert short.rope.scaling == FactorRope((1.0,) * 8, 1.25, (2.0,) * 8, 256, 1.5)
    longer = for_length(short, 65)
    assert (longer.rope.scaling, longer.max_model_len) == (FactorRope((2.0,) * 8, 1.5), 256)
    with pytest.raises(UnsupportedModel, match="num_experts_per_tok '3'"):
        spec_from_hf({**named, "num_experts_per_tok": 3})


def test_a_theta_of_gpt_oss_holds_beside_settings_that_are_left_out() -> None:
    named = {**TINY, "architectures": ["GptOssForCausalLM"], "rope_parameters": None}
    for said, theta in (({}, 150_000.0), ({"rope_theta": 77.0}, 77.0)):
        rope = spec_from_hf({**named, **said}).rope
        assert rope.theta == theta and isinstance(rope.scaling, YarnRope)


def test_turned_layers_of_llama4_see_a_text_in_chunks() -> None:
    """If a text may be longer than one: otherwise there are none."""
    named = {**TINY, "architectures": ["Llama4ForCausalLM"], "attention_chunk_size": 100}
    spec = spec_from_hf(named)
    attentions = [layer.attention for layer in spec.layers]
    assert [one.chunk for one in attentions] == [100, 100, 100, None]
    assert [one.rope is None for one in attentions] == [False, False, False, True]
    assert [one.reach for one in attentions] == [100, 100, 100, None]
    assert (spec.max_model_len, chunk_of(spec)) == (256, 100)
    cut = within_a_chunk(spec)
    assert (cut.max_model_len, chunk_of(cut)) == (100, 0)
    for change in ({"attention_chunk_size": 256}, {"layer_types": ["full_attention"] * 4}):
        spec = spec_from_hf({**named, **change})
        assert (spec.max_model_len, chunk_of(spec)) == (256, 0)
    with pytest.raises(CorruptModel, match="attention_chunk_size"):
        spec_from_hf({**named, "attention_chunk_size": None})
    with pytest.raises(UnsupportedModel, match="sliding_attention"):
        spec_from_hf({**named, "layer_types": ["sliding_attention"] * 4})


def test_ropes_of_llama4_may_end_where_they_begin_to_blend() -> None:
    """Scout's factors are both 1; a yarn's factor would be lost in norms behind it."""
    named = {**TINY, "architectures": ["Llama4ForConditionalGeneration"], "model_type": "llama4"}
    said = {"rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0}
    text = {**TINY, "rope_scaling": {**said, "original_max_position_embeddings": 64}}
    spec = spec_from_hf({**named, "text_config": text})
    assert spec.rope.scaling == Llama3Rope(16.0, 1.0, 1.0, 64)
    with pytest.raises(UnsupportedModel, match="yarn"):
        spec_from_hf({**named, "text_config": {**TINY, "rope_scaling": {"rope_type": "yarn"}}})


def test_a_null_theta_of_olmo_hybrid_is_no_rope() -> None:
    """Inside the settings or beside them; settings that are null as a whole are the usual ones."""
    named = {**TINY, "architectures": ["OlmoHybridForCausalLM"]}
    usual: list[dict[str, Any]] = [
        {},
        {"rope_parameters": None},
        {"rope_theta": None, "rope_parameters": {"rope_theta": 9.0}},
    ]
    for said in usual:
        assert spec_from_hf({**named, **said}).layers[-1].attention.rope is not None
    none: list[dict[str, Any]] = [{"rope_theta": None}, {"rope_parameters": {"rope_theta": None}}]
    for said in none:
        assert spec_from_hf({**named, **said}).layers[-1].attention.rope is None
        config = OlmoHybridConfig(**TINY, **said)
        assert config.rope_parameters["rope_theta"] is None  # what the class looks at


def test_gates_of_attention_have_no_biases() -> None:
    """Those of Trinity's class have none beside others that do, which no plan says."""
    named = {**TINY, "architectures": ["AfmoeForCausalLM"], "head_dim": 16}
    assert spec_from_hf({**named, "attention_bias": False}).layers[0].attention.output_gate
    for key, value in {"attention_bias": True, "route_norm": False, "num_expert_groups": 2}.items():
        with pytest.raises(UnsupportedModel, match=key):
            spec_from_hf({**named, key: value})


def test_a_null_factor_of_minicpm3_changes_nothing() -> None:
    """A missing one is that of the published model, whose longrope ends where it would begin."""
    named = {**TINY, "architectures": ["MiniCPM3ForCausalLM"]}
    spec = spec_from_hf(named)
    assert (spec.layers[0].branch_scale, spec.logits.scale) == (0.7, 256 / 96)
    spec = spec_from_hf({**named, "scale_depth": None, "dim_model_base": None})
    assert (spec.layers[0].branch_scale, spec.logits.scale) == (1.0, 1.0)
    factors = {f"{one}_factor": [1.0 + i] * 16 for i, one in enumerate(("short", "long"))}
    rope = {"type": "longrope", **factors, "original_max_position_embeddings": 256}
    assert spec_from_hf({**named, "rope_scaling": rope}).rope.scaling == FactorRope((1.0,) * 16)


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


def test_qwen3_vl_with_experts_has_the_defaults_of_its_class() -> None:
    from transformers import Qwen3VLMoeConfig

    named = {"architectures": ["Qwen3VLMoeForConditionalGeneration"], "model_type": "qwen3_vl_moe"}
    text = {"model_type": "qwen3_vl_moe_text", "tie_word_embeddings": True}  # as the class writes
    said = {**Qwen3VLMoeConfig().to_dict(), **named}
    short = spec_from_hf({**named, "text_config": text, "vision_config": {}})
    assert short == spec_from_hf(said)
    experts = short.layers[0].mlp
    assert isinstance(experts, ExpertsPlan) and experts.renormalise and experts.count == 60


@pytest.mark.parametrize("said", [{"norm_topk_prob": False}, {"use_sliding_window": True}])
def test_what_the_class_of_qwen3_vl_with_experts_does_not_read_is_refused(
    said: dict[str, Any],
) -> None:
    text = {**TINY, "model_type": "qwen3_vl_moe_text"}
    named = {"architectures": ["Qwen3VLMoeForConditionalGeneration"], "model_type": "qwen3_vl_moe"}
    around = {**named, "vision_config": {}}
    assert spec_from_hf({**around, "text_config": text})
    with pytest.raises(UnsupportedModel, match=f"{next(iter(said))} "):
        spec_from_hf({**around, "text_config": {**text, **said}})


def test_the_pairs_of_coordinates_add_up_to_those_that_rotate() -> None:
    """As where Transformers cuts a head into them. Without a factor a whole head rotates."""
    named = {**TINY, "architectures": ["Glm4vForConditionalGeneration"], "hidden_size": 6 * 32}
    rope = {"mrope_section": [2, 3, 3], "rope_type": "default"}
    spec = spec_from_hf({**named, "rope_parameters": {**rope, "partial_rotary_factor": 0.5}})
    assert spec.rope.axes == (0, 0, 1, 1, 1, 2, 2, 2) and spec.rope.interleaved
    with pytest.raises(UnsupportedModel, match=r"add up to the 16 pairs .* \[2, 3, 3\]"):
        spec_from_hf({**named, "rope_parameters": rope})
    for wrong in (["2", 3, 3], [2, 3], [-8, 12, 12], 8):
        with pytest.raises(CorruptModel, match="three whole numbers"):
            spec_from_hf({**named, "rope_parameters": {**rope, "mrope_section": wrong}})


def test_what_the_classes_of_glm_that_see_do_not_read_is_refused() -> None:
    rope = {"mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}
    others: dict[str, dict[str, Any]] = {
        "Glm4v": {"attention_bias": False},
        "Glm4vMoe": {"use_qk_norm": True},
        "GlmOcr": {"attention_bias": True},
    }
    for model, said in others.items():
        named = {**TINY, "architectures": [f"{model}ForConditionalGeneration"]}
        named |= {"rope_parameters": rope}
        assert spec_from_hf(named).layers[1].attention.qkv_bias == (model != "GlmOcr")
        with pytest.raises(UnsupportedModel, match=f"{next(iter(said))} "):
            spec_from_hf({**named, **said})
