"""What the configs of models share whose layers attend or keep a state. No torch."""

from __future__ import annotations

from dataclasses import replace

from quire.errors import UnsupportedModel
from quire.families.fields import Fields
from quire.families.mixtures import read_count
from quire.families.reading import num_layers, read_heads, read_plain_decoder
from quire.families.rope_config import read_rope
from quire.layer_plan import DeltaNetPlan, ExpertsPlan, MlpPlan, NormPlan
from quire.spec import ModelSpec

PERIOD = 4  # the last of so many layers attends, the others keep a state
ATTENDS, KEEPS_STATE = "full_attention", "linear_attention"
MOST_REACH = 64  # tokens of a convolution


def read_hybrid(
    family: str, fields: Fields, *, kv_heads: int, mlp: MlpPlan | ExpertsPlan
) -> ModelSpec:
    """Layers of Gated DeltaNet, and some between them that attend with an output gate; `kv_heads`
    are those of a config that does not say them."""
    heads = read_heads(fields, kv_heads=kv_heads, head_dim=256)
    biased = fields.flag("attention_bias", False)
    norm = NormPlan(fields.positive("rms_norm_eps", 1e-6), one_plus=True)
    spec = read_plain_decoder(
        family,
        fields,
        heads,
        rope=read_rope(fields, heads.head_dim, partial=True, factor=0.25),
        norm=norm,
        qk_norm=True,
        mlp=mlp,
        qkv_bias=biased,
        o_bias=biased,
        output_gate=True,
    )
    state = _read_state(fields, norm.eps)
    kinds = zip(spec.layers, _kinds(fields), strict=True)
    layers = (replace(one, state=state) if kind == KEEPS_STATE else one for one, kind in kinds)
    return replace(spec, layers=tuple(layers))


def read_gated_experts(
    fields: Fields, *, count: int, per_token: int, renormalise: bool = True
) -> ExpertsPlan:
    """Experts of 512, and one more that every token takes as far as its gate is open; the arguments
    are those of a config that does not say them."""
    experts = read_count(fields, count)
    return ExpertsPlan(
        experts,
        fields.count("num_experts_per_tok", per_token, most=experts),
        MlpPlan(fields.count("moe_intermediate_size", 512)),
        renormalise=renormalise,
        shared=MlpPlan(fields.count("shared_expert_intermediate_size", 512)),
    )


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
    )


def _kinds(fields: Fields) -> list[str]:
    """Of each layer, whether it attends or keeps a state."""
    count, period = num_layers(fields), fields.count("full_attention_interval", PERIOD)
    usual = [KEEPS_STATE if (i + 1) % period else ATTENDS for i in range(count)]
    given = fields.values.get("layer_types") or usual
    if not isinstance(given, list) or len(given) != count:
        raise fields.wrong("layer_types", f"a list of {count} names")
    for kind in given:
        if kind not in (ATTENDS, KEEPS_STATE):
            raise UnsupportedModel(f"{fields.source}: layer type {str(kind)[:40]!r}")
    if ATTENDS not in given:
        raise UnsupportedModel(f"{fields.source}: layer_types has no {ATTENDS}")
    return given
