"""Reads configs of models in which some layers have attention and others keep a state. No torch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from quire.errors import UnsupportedModel
from quire.families.family import Name
from quire.families.fields import Fields
from quire.families.mixtures import read_count
from quire.families.reading import num_layers, read_biases, read_heads, read_plain_decoder
from quire.families.rope_config import read_rope
from quire.layer_parts.state import DeltaNetPlan
from quire.layer_plan import ExpertsPlan, MlpPlan, NormPlan
from quire.spec import ModelSpec

PERIOD = 4  # the last layer of each period has attention, the others keep a state
ATTENDS, KEEPS_STATE, CONVOLVES = "full_attention", "linear_attention", "conv"
MOST_REACH = 64  # most tokens that a convolution may cover
SECTIONS = (11, 11, 10)  # pairs that time, height and width rotate, in models that see
IN_TURN = "gguf_heads_in_turn"  # order of heads of v in some GGUF files; no config has it
GGUF_READS = (
    *("ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.time_step_rank"),
    *("ssm.inner_size", "full_attention_interval", "expert_shared_feed_forward_length"),
    *("nextn_predict_layers", "rope.dimension_sections"),
)
GGUF_KV = "attention.head_count_kv"  # for each layer, 0 where none attends
GGUF_REACH = "shortconv.l_cache"
# The name in GGUF files of the norm before the feed-forward.
MLP_NORM = Name("post_attention_layernorm", "post_attention_norm")


def read_hybrid(fields: Fields, *, kv_heads: int, mlp: MlpPlan | ExpertsPlan) -> ModelSpec:
    """Layers with Gated DeltaNet, and between them some with attention and an output gate.
    `kv_heads` is the default."""
    heads = read_heads(fields, kv_heads=kv_heads, head_dim=256)
    norm = NormPlan(fields.positive("rms_norm_eps", 1e-6), one_plus=True)
    spec = read_plain_decoder(
        fields,
        heads,
        rope=read_rope(fields, heads.head_dim, partial=True, factor=0.25),
        norm=norm,
        qk_norm=True,
        mlp=mlp,
        **read_biases(fields),
        output_gate=True,
    )
    state = _read_state(fields, norm.eps)
    kinds = zip(spec.layers, _kinds(fields), strict=True)
    layers = (replace(one, state=state) if kind == KEEPS_STATE else one for one, kind in kinds)
    return replace(spec, layers=tuple(layers))


def read_gated_experts(
    fields: Fields, *, count: int, per_token: int, renormalise: bool = True
) -> ExpertsPlan:
    """Experts, by default 512 wide, and a shared one with a gate; arguments are defaults."""
    experts = read_count(fields, count)
    return ExpertsPlan(
        experts,
        fields.count("num_experts_per_tok", per_token, most=experts),
        MlpPlan(fields.count("moe_intermediate_size", 512)),
        renormalise=renormalise,
        shared=MlpPlan(fields.count("shared_expert_intermediate_size", 512)),
    )


def hybrid_words(fields: Fields, config: dict[str, Any], *, in_turn: bool) -> dict[str, Any]:
    """Config values from a GGUF file's metadata. `in_turn`: heads of v that share a head of k are
    not next to each other in the file."""
    arch = fields.word("general.architecture")
    said = Fields({key: fields.values.get(f"{arch}.{key}") for key in GGUF_READS}, fields.source)
    heads, inner = said.count("ssm.time_step_rank"), said.count("ssm.inner_size")
    if inner % heads:
        raise said.wrong("ssm.inner_size", f"a multiple of the {heads} heads")
    ahead = said.whole("nextn_predict_layers", 0)  # extra layers at the end, which predict ahead
    return {
        "num_hidden_layers": config["num_hidden_layers"] - ahead,
        "linear_conv_kernel_dim": said.count("ssm.conv_kernel"),
        "linear_key_head_dim": said.count("ssm.state_size"),
        "linear_num_key_heads": said.count("ssm.group_count"),
        "linear_num_value_heads": heads,
        "linear_value_head_dim": inner // heads,
        "full_attention_interval": said.count("full_attention_interval", PERIOD),
        "shared_expert_intermediate_size": said.values.get("expert_shared_feed_forward_length"),
        IN_TURN: in_turn and heads > said.count("ssm.group_count"),
    }


def gguf_kinds(fields: Fields, layers: int, other: str) -> list[str]:
    """The kind of each layer of a GGUF file: those without KV heads are of the kind `other`."""
    counts = fields.values.get(key := f"{fields.word('general.architecture')}.{GGUF_KV}")
    if not isinstance(counts, list):
        counts = [counts] * layers
    if len({count for count in counts if count}) > 1:
        raise fields.unsupported(key, "the same in all layers that attend")
    return [ATTENDS if count else other for count in counts]


def convolving_words(fields: Fields, config: dict[str, Any]) -> dict[str, Any]:
    """Config values from the metadata of a GGUF file whose other layers have convolutions."""
    arch = fields.word("general.architecture")
    return {
        "layer_types": gguf_kinds(fields, config["num_hidden_layers"], CONVOLVES),
        "conv_L_cache": fields.count(f"{arch}.{GGUF_REACH}"),
        "norm_eps": config["rms_norm_eps"],
        "block_auto_adjust_ff_dim": False,
    }


def _read_state(fields: Fields, eps: float) -> DeltaNetPlan:
    heads = fields.count("linear_num_value_heads", 32)
    key_heads = fields.count("linear_num_key_heads", 16)
    if heads % key_heads:
        raise fields.wrong("linear_num_value_heads", f"a multiple of the {key_heads} key heads")
    return DeltaNetPlan(
        heads,
        key_heads,
        fields.count("linear_key_head_dim", 128),
        fields.count("linear_value_head_dim", 128),
        fields.count("linear_conv_kernel_dim", 4, most=MOST_REACH),
        NormPlan(eps),
        in_turn=fields.flag(IN_TURN, False),
    )


def _kinds(fields: Fields) -> list[str]:
    """The kind of each layer: attention or state."""
    period = fields.count("full_attention_interval", PERIOD)
    usual = [KEEPS_STATE if (i + 1) % period else ATTENDS for i in range(num_layers(fields))]
    return attending_kinds(fields, usual)


def attending_kinds(fields: Fields, usual: list[str]) -> list[str]:
    """As layer_kinds, for the two kinds above; UnsupportedModel if none attends."""
    given = layer_kinds(fields, usual, (ATTENDS, KEEPS_STATE))
    if ATTENDS not in given:
        raise UnsupportedModel(f"{fields.source}: layer_types has no {ATTENDS}")
    return given


def layer_kinds(fields: Fields, usual: list[str], known: Collection[str]) -> list[str]:
    """`layer_types`, one of the known names for each layer; without it the usual ones."""
    given = fields.values.get("layer_types") or usual
    if not isinstance(given, list) or len(given) != num_layers(fields):
        raise fields.wrong("layer_types", f"a list of {num_layers(fields)} names")
    for kind in given:
        if not isinstance(kind, str) or kind not in known:
            raise UnsupportedModel(f"{fields.source}: layer type {str(kind)[:40]!r}")
    return given
