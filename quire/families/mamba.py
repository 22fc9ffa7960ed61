"""Reads configs of models in which some layers are Mamba-2 and others have attention. No torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from quire.errors import UnsupportedModel
from quire.families.family import Name
from quire.families.fields import Fields
from quire.families.hybrids import ATTENDS, KEEPS_STATE, MOST_REACH, layer_kinds
from quire.layer_parts.state import MambaPlan
from quire.layer_plan import AttentionPlan, NormPlan
from quire.spec import ModelSpec

# Names of the two kinds of layers, the newer ones and those of older files.
KINDS = {ATTENDS: ATTENDS, "attention": ATTENDS, KEEPS_STATE: KEEPS_STATE, "mamba": KEEPS_STATE}
# Keys of a config that do not change results, and why.
WITHOUT_EFFECT = {
    **dict.fromkeys(("mamba_chunk_size", "chunk_size"), "the sums are the same for every size"),
    "use_mamba_kernels": "quire has its own",
}
_OLDER = {"n_groups": "mamba_n_groups", "conv_kernel": "mamba_d_conv"}
_OLDER |= {"use_conv_bias": "mamba_conv_bias", "time_step_min": "mamba_dt_min"}
# Steps without bounds; the last is how Transformers writes it in JSON.
ONLY: dict[str, tuple[Any, ...]] = {
    "time_step_limit": ([0.0, inf], (0.0, inf), [0.0, {"__float__": "Infinity"}])
}


# Of models that keep nothing but states: tokens between two snapshots of a row, in float32, and a
# number that divides the room of a head, which fp8 asks for.
ROOM_TOKENS, ROOM_MULTIPLE = 128, 4
# Keys of GGUF metadata that say what these layers have.
GGUF_SSM = tuple(
    f"ssm.{key}"
    for key in ("conv_kernel", "state_size", "group_count", "time_step_rank", "inner_size")
)


def gguf_state(fields: Fields, words: Mapping[str, str]) -> dict[str, Any]:
    """What GGUF metadata say of layers with Mamba-2, under `words` for the reach of a convolution,
    the size of a key, the number of keys, and the number and the size of heads."""
    arch = fields.word("general.architecture")
    reach, key, keys, heads, inner = (fields.count(f"{arch}.{name}") for name in GGUF_SSM)
    if inner % heads:
        raise fields.wrong(f"{arch}.ssm.inner_size", f"a multiple of the {heads} heads")
    said = {"reach": reach, "key": key, "keys": keys, "heads": heads, "size": inner // heads}
    return {own: said[word] for word, own in words.items()}


def names_of(module: str) -> dict[str, Any]:
    """The names of a layer's tensors, which are in this module in files of Hugging Face."""
    return {
        "state_in": Name(f"{module}.in_proj", "ssm_in"),
        "convolution": Name(f"{module}.conv1d", "ssm_conv1d"),
        "log_slopes": Name(f"{module}.A_log", "ssm_a", bare=True, gguf_bare=True),
        "skips": Name(f"{module}.D", "ssm_d", bare=True, gguf_bare=True),
        "shifts": Name(f"{module}.dt", "ssm_dt", bare=True),
        "state_norm": Name(f"{module}.norm", "ssm_norm"),
        "state_out": Name(f"{module}.out_proj", "ssm_out"),
    }


def read_mamba(fields: Fields, norm: NormPlan, width: int | None = None) -> MambaPlan:
    """Of a config that says the heads' size, or how wide they are together: the hidden size times a
    factor, or `width`."""
    heads, bias = fields.count("mamba_n_heads", 128), fields.flag("mamba_proj_bias", False)
    width = width or fields.count("mamba_expand", 2) * fields.count("hidden_size")
    if width % heads:
        raise fields.wrong("mamba_n_heads", f"a divisor of {width}, the width of all heads")
    automatic = fields.values.get("mamba_d_head") == "auto"
    size = width // heads if automatic else fields.count("mamba_d_head", width // heads)
    if size * heads != width:
        raise fields.wrong("mamba_d_head", f"{width // heads}, as {heads} heads are {width} wide")
    return MambaPlan(
        heads,
        _groups(fields, "mamba_n_groups", 1, heads),
        fields.count("mamba_d_state", 256),
        size,
        fields.count("mamba_d_conv", 4, most=MOST_REACH),
        norm,
        bias=bias,
        o_bias=bias,
        convolution_bias=fields.flag("mamba_conv_bias", True),
    )


def read_mamba_heads(fields: Fields, norm: NormPlan) -> MambaPlan:
    """Of a config that says the number and the size of heads."""
    heads, bias = fields.count("mamba_num_heads", 128), fields.flag("use_bias", False)
    return MambaPlan(
        heads,
        _groups(fields, "n_groups", 8, heads),
        fields.count("ssm_state_size", 128),
        fields.count("mamba_head_dim", 64),
        fields.count("conv_kernel", 4, most=MOST_REACH),
        norm,
        bias=bias,
        o_bias=bias,
        convolution_bias=fields.flag("use_conv_bias", True),
    )


def read_stepping_heads(fields: Fields, norm: NormPlan) -> MambaPlan:
    """As read_mamba_heads, of a config that says the least step, too, and some of it perhaps under
    older names."""
    older = {new: old for new, old in _OLDER.items() if fields.values.get(old) is not None}
    fields = fields.under(older)
    least = fields.not_negative("time_step_min", 0.001)
    return replace(read_mamba_heads(fields, norm), least_step=least)


def room_for_states(state: MambaPlan) -> AttentionPlan:
    """What stands for attention in a model without any: heads that only say how much room blocks
    have. ROOM_TOKENS tokens take as much, in float32, as a state. There are as many heads as the
    state has, so that ranks divide both alike."""
    each = -(-state.state_numbers // (2 * ROOM_TOKENS * state.num_heads))
    width = -(-each // ROOM_MULTIPLE) * ROOM_MULTIPLE
    return AttentionPlan(state.num_heads, state.num_heads, width, scale=1.0, rope=None)


def _groups(fields: Fields, key: str, unsaid: int, heads: int) -> int:
    groups = fields.count(key, unsaid)
    if heads % groups:
        raise fields.wrong(key, f"a divisor of the {heads} heads")
    return groups


def read_kinds(fields: Fields) -> list[str]:
    """The kind of each layer, by `layer_types` or an older name for it."""
    older = fields.values.get("layers_block_type") or []
    return [KINDS[kind] for kind in layer_kinds(fields, older, KINDS)]


def check_attends(fields: Fields, kinds: Collection[str]) -> None:
    if ATTENDS not in kinds:
        raise UnsupportedModel(f"{fields.source}: no layer attends; this family needs one")


def with_states(spec: ModelSpec, fields: Fields, kinds: Sequence[str]) -> ModelSpec:
    """The spec, whose layers of one kind keep a state. UnsupportedModel if all do."""
    if KEEPS_STATE not in kinds:
        return spec
    check_attends(fields, kinds)
    state, pairs = read_mamba(fields, spec.norm), zip(spec.layers, kinds, strict=True)
    layers = (one if kind == ATTENDS else replace(one, state=state) for one, kind in pairs)
    return replace(spec, layers=tuple(layers))
