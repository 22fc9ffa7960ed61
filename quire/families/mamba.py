"""Reads configs of models in which some layers are Mamba-2 and others have attention. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from quire.errors import UnsupportedModel
from quire.families.family import Name
from quire.families.fields import Fields
from quire.families.hybrids import ATTENDS, KEEPS_STATE, MOST_REACH, layer_kinds
from quire.layer_parts.state import MambaPlan
from quire.layer_plan import NormPlan
from quire.spec import ModelSpec

# Names of the two kinds of layers, the newer ones and those of older files.
KINDS = {ATTENDS: ATTENDS, "attention": ATTENDS, KEEPS_STATE: KEEPS_STATE, "mamba": KEEPS_STATE}
# Keys of a config that do not change results, and why.
WITHOUT_EFFECT = {"mamba_chunk_size": "the sums are the same for chunks of any size"}
NAMES: Mapping[str, Any] = {
    "convolution": Name("mamba.conv1d", "ssm_conv1d"),
    "log_slopes": Name("mamba.A_log", "ssm_a", bare=True, gguf_bare=True),
    "shifts": Name("mamba.dt", "ssm_dt", bare=True),
    "state_norm": Name("mamba.norm", "ssm_norm"),
    "state_out": Name("mamba.out_proj", "ssm_out"),
}
# Steps without bounds; the last is how Transformers writes it in JSON.
ONLY: dict[str, tuple[Any, ...]] = {
    "time_step_limit": ([0.0, inf], (0.0, inf), [0.0, {"__float__": "Infinity"}])
}


def read_mamba(fields: Fields, norm: NormPlan) -> MambaPlan:
    """Of a config that says the heads' size, or the factor from hidden size to all heads."""
    heads, groups = fields.count("mamba_n_heads", 128), fields.count("mamba_n_groups", 1)
    width = fields.count("mamba_expand", 2) * fields.count("hidden_size")
    if width % heads:
        raise fields.wrong("mamba_n_heads", f"a divisor of {width}, the width of all heads")
    automatic = fields.values.get("mamba_d_head") == "auto"
    size = width // heads if automatic else fields.count("mamba_d_head", width // heads)
    if size * heads != width:
        raise fields.wrong("mamba_d_head", f"{width // heads}, as {heads} heads are {width} wide")
    return MambaPlan(
        heads,
        checked_groups(fields, "mamba_n_groups", groups, heads),
        fields.count("mamba_d_state", 256),
        size,
        fields.count("mamba_d_conv", 4, most=MOST_REACH),
        norm,
        bias=fields.flag("mamba_proj_bias", False),
        convolution_bias=fields.flag("mamba_conv_bias", True),
    )


def checked_groups(fields: Fields, key: str, groups: int, heads: int) -> int:
    if heads % groups:
        raise fields.wrong(key, f"a divisor of the {heads} heads")
    return groups


def read_kinds(fields: Fields) -> list[str]:
    """The kind of each layer, by `layer_types` or an older name for it."""
    older = fields.values.get("layers_block_type") or []
    return [KINDS[kind] for kind in layer_kinds(fields, older, KINDS)]


def with_states(spec: ModelSpec, fields: Fields, kinds: Sequence[str]) -> ModelSpec:
    """The spec, whose layers of one kind keep a state. UnsupportedModel if all do."""
    if KEEPS_STATE not in kinds:
        return spec
    if ATTENDS not in kinds:
        raise UnsupportedModel(f"{fields.source}: no layer attends; quire's own families need one")
    state, pairs = read_mamba(fields, spec.norm), zip(spec.layers, kinds, strict=True)
    layers = (one if kind == ATTENDS else replace(one, state=state) for one, kind in pairs)
    return replace(spec, layers=tuple(layers))
