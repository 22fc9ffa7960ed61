"""OLMo Hybrid: three layers of Gated DeltaNet, with norms before the branches and rates up to 2, to
one that attends as OLMo 2 does, with norms after them and rope or none. No torch."""

from __future__ import annotations

from dataclasses import replace

from quire.families import olmo2
from quire.families.family import Family, LayerNames, Name, sizes
from quire.families.fields import Fields
from quire.families.hybrids import ATTENDS, KEEPS_STATE, MOST_REACH, PERIOD, attending_kinds
from quire.families.reading import num_layers
from quire.families.rope_config import DEFAULT_THETA, rope_fields
from quire.layer_parts.state import DeltaNetPlan
from quire.layer_plan import NormPlan
from quire.spec import ModelSpec

EPS = 1e-5  # of the norms of heads, whatever the config says


def read(fields: Fields) -> ModelSpec:
    turns = _turns(fields)
    spec = olmo2.read(fields if turns else fields.under({}, rope_parameters={}), norm_eps=1e-6)
    if not turns:
        spec = spec.with_attention(lambda one: replace(one, rope=None))
    state = _read_state(fields)
    usual = [KEEPS_STATE if (i + 1) % PERIOD else ATTENDS for i in range(num_layers(fields))]
    usual = usual if ATTENDS in usual else [*usual[:-1], ATTENDS]
    kinds = attending_kinds(fields, usual)
    layers = (
        replace(one, state=state, norms="before") if kind == KEEPS_STATE else one
        for one, kind in zip(spec.layers, kinds, strict=True)
    )
    return replace(spec, layers=tuple(layers))


def _turns(fields: Fields) -> bool:
    """Whether heads are rotated: not if the config says null for theta, which Transformers does not
    take for a missing one."""
    said, outside = rope_fields(fields).values, fields.values.get("rope_theta", DEFAULT_THETA)
    return said.get("rope_theta", outside) is not None


def _read_state(fields: Fields) -> DeltaNetPlan:
    attending, hidden = fields.count("num_attention_heads"), fields.count("hidden_size")
    heads = fields.count("linear_num_value_heads", attending)
    keys = fields.count("linear_num_key_heads", attending)
    if heads % keys:
        raise fields.wrong("linear_num_value_heads", f"a multiple of the {keys} key heads")
    size = fields.count("linear_key_head_dim", int(0.75 * hidden / keys))
    return DeltaNetPlan(
        heads,
        keys,
        size,
        fields.count("linear_value_head_dim", 2 * size),
        fields.count("linear_conv_kernel_dim", 4, most=MOST_REACH),
        NormPlan(EPS),
        most_rate=2.0 if fields.flag("linear_allow_neg_eigval", True) else 1.0,
    )


def _of_state(*letters: str, ending: str) -> tuple[Name, ...]:
    return tuple(Name(f"linear_attn.{one}_{ending}", f"ssm_{one}_{ending}") for one in letters)


NAMES = LayerNames(
    attn_norm=Name("attention_layer_norm", "attn_norm", hf_also="input_layernorm"),
    mlp_norm=Name("feedforward_layer_norm", "ffn_norm", hf_also="post_attention_layernorm"),
    # Transformers writes the name of the other kind of layers.
    attn_post_norm=Name(
        "post_attention_layernorm", "post_attention_norm", hf_also="feedforward_layer_norm"
    ),
    qkvz=_of_state("q", "k", "v", "g", ending="proj"),
    rates=_of_state("b", "a", ending="proj"),
    convolutions=_of_state("q", "k", "v", ending="conv1d"),
    state_norm=Name("linear_attn.o_norm", "ssm_norm"),
    state_out=Name("linear_attn.o_proj", "ssm_out"),
)
FAMILY = Family(
    name="olmo_hybrid",
    architectures=("OlmoHybridForCausalLM",),
    read=read,
    unsaid=sizes(100_352, 3840, 11_008, 32, 30, 65_536),
    names=NAMES,
    only={"linear_use_gate": (True,)},
    without_effect={
        f"linear_{one}": "how weights begin"
        for one in ("a_log_min", "a_log_max", "dt_min", "dt_max", "dt_init_floor")
    },
)
