"""Configs of models whose layers keep states: what they say in more than one way, and what is
refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from quire.errors import CorruptModel, UnsupportedModel
from quire.layer_parts.state import ConvolutionPlan, MambaPlan
from quire.layer_plan import ExpertsPlan, MlpPlan
from quire.spec import ModelSpec
from quire.weights.hf_config import spec_from_hf
from quire.weights.names import weights_of

SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
SMALL |= {"intermediate_size": 48, "max_position_embeddings": 128}
MAMBA = {"mamba_n_heads": 8, "mamba_d_state": 4, "mamba_n_groups": 2}
NEMOTRON: dict[str, Any] = {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "n_groups": 2,
}
NEMOTRON |= {"mamba_num_heads": 8, "mamba_head_dim": 8, "ssm_state_size": 4}
LFM2 = {"architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "num_hidden_layers": 3}
GRANITE: dict[str, Any] = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "model_type": "granitemoehybrid",
}
GRANITE |= {"num_hidden_layers": 3, "num_local_experts": 0, **MAMBA}
BAMBA: dict[str, Any] = {
    "architectures": ["BambaForCausalLM"],
    "model_type": "bamba",
    "num_hidden_layers": 3,
}
FALCON: dict[str, Any] = {
    "architectures": ["FalconH1ForCausalLM"],
    "model_type": "falcon_h1",
    "mamba_d_ssm": 64,
}
MAMBA2: dict[str, Any] = {
    "architectures": ["Mamba2ForCausalLM"],
    "model_type": "mamba2",
    "num_hidden_layers": 3,
    "num_heads": 8,
    "head_dim": 16,
}
FALCON |= {"num_hidden_layers": 3, **MAMBA}


def spec(named: dict[str, Any], **more: Any) -> ModelSpec:
    return spec_from_hf({**SMALL, **named, **more})


def kinds(found: ModelSpec) -> str:
    """S: a state; A: attention; followed by what is behind it."""
    behind = {type(None): "", MlpPlan: "-", ExpertsPlan: "E"}
    return "".join(("A" if x.state is None else "S") + behind[type(x.mlp)] for x in found.layers)


def test_branches_that_are_layers_in_files_are_read_by_name_and_by_letter() -> None:
    by_letter = spec(NEMOTRON, hybrid_override_pattern="MEM*-M")
    names = ["mamba", "moe", "linear_attention", "attention", "mlp", "mamba"]
    assert by_letter == spec(NEMOTRON, layers_block_type=names) == spec(NEMOTRON, layer_types=names)
    assert kinds(by_letter) == "SESA-S"
    stored = {part.hf for weight in weights_of(by_letter) for part in weight.parts}
    numbers = {
        "backbone.layers.0.mixer.in_proj.weight",
        "backbone.layers.1.mixer.experts.0.up_proj.weight",
        "backbone.layers.3.mixer.q_proj.weight",
        "backbone.layers.4.mixer.down_proj.weight",
        "backbone.layers.5.norm.weight",
    }
    assert numbers <= stored and not any(name.startswith("backbone.layers.6") for name in stored)


def test_older_names_mean_the_same() -> None:
    older = {"mamba_n_groups": 4, "mamba_d_conv": 3, "mamba_conv_bias": False, "mamba_dt_min": 0.2}
    newer = {"n_groups": 4, "conv_kernel": 3, "use_conv_bias": False, "time_step_min": 0.2}
    pattern = {"hybrid_override_pattern": "M*"}
    found = spec(NEMOTRON, **pattern, **older)
    assert found == spec(NEMOTRON, **pattern, **newer)
    state = found.layers[0].state
    assert isinstance(state, MambaPlan)
    assert (state.num_key_heads, state.reach, state.least_step) == (4, 3, 0.2)


def test_a_width_is_adjusted_as_its_class_does() -> None:
    """Files of LFM2 say 12288, by another name, where the feed-forward is 8192 wide."""
    found = spec(LFM2, block_ff_dim=12_288, full_attn_idxs=[2], tie_embedding=False)
    assert found.intermediate_size == 8192 and not found.tied_embeddings
    assert kinds(found) == "S-S-A-"
    assert found.layers[0].state == ConvolutionPlan(64, 3)
    raw = spec(LFM2, block_ff_dim=12_288, block_auto_adjust_ff_dim=False)
    assert raw.intermediate_size == 12_288 and raw.tied_embeddings


def test_a_model_of_states_alone_attends_nowhere() -> None:
    """It has no keys to count, no positions to turn, and no length of its own."""
    found = spec(MAMBA2)
    assert kinds(found) == "SSS"
    assert found.attentions == () and found.rotations == () and found.kv_values_per_token == 0
    assert found.max_model_len == 128
    unsaid = spec_from_hf(MAMBA2 | {"hidden_size": 64})
    assert unsaid.max_model_len == 1 << 20
    assert all("attn.qkv." not in weight.name for weight in weights_of(found))


def test_a_layer_of_attention_beside_a_state_is_two_that_share_a_norm() -> None:
    found = spec(FALCON)
    assert kinds(found) == "SA-" * 3
    assert [layer.joins_next for layer in found.layers] == [True, False] * 3
    names = [weight.name for weight in weights_of(found) if ".attn_norm." in weight.name]
    assert names == [f"layers.{i}.attn_norm.weight" for i in (0, 2, 4)]
    stored = {weight.parts[0].hf for weight in weights_of(found) if weight.name in names}
    assert stored == {f"model.layers.{i}.input_layernorm.weight" for i in range(3)}


@pytest.mark.parametrize(
    ("named", "more", "rule"),
    [
        (NEMOTRON, {"hybrid_override_pattern": "-M*"}, "layer 0 is a feed-forward"),
        (NEMOTRON, {"hybrid_override_pattern": "M--*"}, "layer 2 is a feed-forward"),
        (NEMOTRON, {"hybrid_override_pattern": "M-M"}, "no layer attends"),
        (NEMOTRON, {"hybrid_override_pattern": "MX*"}, "layer type 'X'"),
        (NEMOTRON, {"moe_latent_size": 32}, "moe_latent_size '32'"),
        (NEMOTRON, {"tie_word_embeddings": True}, "tie_word_embeddings 'True'"),
        (NEMOTRON, {"time_step_limit": [0.0, 0.1]}, "time_step_limit"),
        (GRANITE, {"layer_types": ["mamba"] * 3}, "no layer attends"),
        (GRANITE, {"layer_types": ["conv", "mamba", "attention"]}, "layer type 'conv'"),
        (GRANITE, {"position_embedding_type": "alibi"}, "position_embedding_type 'alibi'"),
        (BAMBA, MAMBA, "no layer attends"),
        (MAMBA2, {"time_step_limit": [0.01, 0.1]}, "time_step_limit"),
        (MAMBA2, {"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        (FALCON, {"attention_bias": True, "attention_in_multiplier": 2.0}, "beside biases"),
        (FALCON, {"mamba_proj_bias": True, "ssm_in_multiplier": 2.0}, "beside mamba_proj_bias"),
    ],
)
def test_what_quire_does_not_have_is_refused_by_name(
    named: dict[str, Any], more: dict[str, Any], rule: str
) -> None:
    """So that Transformers' own code may run it."""
    with pytest.raises(UnsupportedModel, match=rule):
        spec(named, **more)


@pytest.mark.parametrize(
    ("named", "more", "rule"),
    [
        (NEMOTRON, {"n_groups": 3}, "n_groups must be a divisor of the 8 heads, it is 3"),
        (NEMOTRON, {"layers_block_type": []}, "layers_block_type must be a list of 1 to"),
        (NEMOTRON, {"hybrid_override_pattern": "M" * 10_001}, "must be of at most 10,000 letters"),
        (GRANITE, {"layer_types": ["mamba"]}, "layer_types must be a list of 3 names"),
        (BAMBA, {"attn_layer_indices": 1}, "attn_layer_indices must be a list of layers"),
        (BAMBA, {**MAMBA, "attn_layer_indices": [1], "mamba_n_heads": 7}, "a divisor of 128"),
        (BAMBA, {**MAMBA, "attn_layer_indices": [1], "mamba_d_head": 9}, "mamba_d_head must be 16"),
        (LFM2, {"full_attn_idxs": 2}, "full_attn_idxs must be a list of layers"),
        (LFM2, {"conv_L_cache": 65}, "conv_L_cache must be a whole number from 1 to 64"),
        (MAMBA2, {"expand": 3}, "expand must be such that the hidden size times it is as wide as"),
        (MAMBA2, {"n_groups": 3}, "n_groups must be a divisor of the 8 heads, it is 3"),
        (FALCON, {"ssm_multipliers": [1.0]}, "ssm_multipliers must be a list of 5 numbers"),
    ],
)
def test_what_cannot_be_is_refused_with_the_rule(
    named: dict[str, Any], more: dict[str, Any], rule: str
) -> None:
    with pytest.raises(CorruptModel, match=rule):
        spec(named, **more)
