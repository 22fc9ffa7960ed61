"""Falcon-H1: in every layer Mamba-2 and attention side by side, and factors on all products. A
layer of its files is two of quire's. No torch."""

from __future__ import annotations

from dataclasses import replace

from quire.families.family import Family, LayerNames, ModelNames, Name, sizes
from quire.families.fields import Fields
from quire.families.mamba import ONLY, WITHOUT_EFFECT, names_of, read_mamba
from quire.families.reading import read_biases, read_heads, read_plain_decoder
from quire.layer_parts.state import MambaPlan
from quire.layer_plan import MlpPlan, NormPlan
from quire.spec import LogitsPlan, ModelSpec


def read(fields: Fields) -> ModelSpec:
    heads, biases = read_heads(fields, kv_heads=8), read_biases(fields)
    into = fields.positive("attention_in_multiplier", 1.0)
    if into != 1.0 and biases["qkv_bias"]:
        raise fields.unsupported("attention_in_multiplier", "1 beside biases of attention")
    gate, down = _factors(fields, "mlp_multipliers", 2)
    spec = read_plain_decoder(
        fields,
        heads,
        norm_eps=1e-5,
        scale=heads.head_dim**-0.5 * fields.positive("key_multiplier", 1.0) * into**2,
        **biases,
        mlp=MlpPlan(
            fields.count("intermediate_size"),
            bias=fields.flag("mlp_bias", False),
            gate_scale=gate,
        ),
        layer={
            "branch_scale": into * fields.positive("attention_out_multiplier", 1.0),
            "mlp_scale": down,
        },
        facts={
            "embedding_scale": fields.positive("embedding_multiplier", 1.0),
            "logits": LogitsPlan(scale=fields.positive("lm_head_multiplier", 1.0)),
        },
    )
    attending, scale = spec.layers[0], fields.positive("ssm_out_multiplier", 1.0)
    state = replace(attending, mlp=None, branch_scale=scale, mlp_scale=None, joins_next=True)
    state = replace(state, state=_state(fields, spec.norm))
    return replace(spec, layers=(state, attending) * spec.num_layers)


def _state(fields: Fields, norm: NormPlan) -> MambaPlan:
    into = fields.positive("ssm_in_multiplier", 1.0)
    z, x, b, c, steps = (into * one for one in _factors(fields, "ssm_multipliers", 5))
    known, is_normed = fields.values, fields.flag("mamba_rms_norm", False)
    by_factor = "mamba_d_ssm" in known and known["mamba_d_ssm"] is None
    plan = read_mamba(fields, norm, None if by_factor else fields.count("mamba_d_ssm", 1024))
    if plan.bias and into != 1.0:
        raise fields.unsupported("ssm_in_multiplier", "1 beside mamba_proj_bias")
    return replace(
        plan,
        norm=norm if is_normed else None,
        norm_first=is_normed and fields.flag("mamba_norm_before_gate", True),
        o_bias=fields.flag("projectors_bias", False),
        factors=() if {z, x, b, c, steps} == {1.0} else (c, b, x, z, steps),
    )


def _factors(fields: Fields, key: str, count: int) -> tuple[float, ...]:
    return (1.0,) * count if fields.values.get(key) is None else fields.positives(key, count)


FAMILY = Family(
    name="falcon_h1",
    architectures=("FalconH1ForCausalLM",),
    read=read,
    unsaid=sizes(128_000, 4096, 14_336, 32, 32, 8192),
    names=LayerNames(
        **names_of("mamba"),
        mlp_norm=Name("pre_ff_layernorm", "ffn_norm"),
        gate_up=tuple(Name(f"feed_forward.{x}_proj", f"ffn_{x}") for x in ("gate", "up")),
        down=Name("feed_forward.down_proj", "ffn_down"),
    ),
    outer_names=ModelNames(norm=Name("model.final_layernorm", "output_norm")),
    without_effect={**WITHOUT_EFFECT, "num_logits_to_keep": "what a call returns"},
    only=ONLY,
)
