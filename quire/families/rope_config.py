"""Reads rotary positions from a Hugging Face config, in all its spellings. No torch.

As in Transformers, a `rope_scaling` that is not empty replaces all of `rope_parameters`. What
neither of them has is read from the top level (`rope_theta`, `original_max_position_embeddings`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from quire.errors import CorruptModel, UnsupportedModel
from quire.families.fields import Fields
from quire.layer_parts.rope import FactorRope, LinearRope, Llama3Rope, RopeScaling, YarnRope
from quire.layer_plan import Rope
from quire.spec import ModelSpec

DEFAULT_THETA = 10_000.0
PROPORTIONAL = "proportional"


@dataclass(frozen=True, slots=True)
class RopeSettings:
    """Rotary settings, and the number of positions that they allow."""

    theta: float
    scaling: RopeScaling | None
    max_len: int
    dims: int  # numbers of a head that rope rotates
    turning: int | None = None  # as in Rope

    @property
    def rope(self) -> Rope:
        return Rope(self.theta, self.dims, self.scaling, turning=self.turning)


def read_rope(
    fields: Fields,
    head_dim: int,
    *,
    kinds: Mapping[str, str] | None = None,
    original: int | None = None,
    partial: bool = False,
    factor: float = 1.0,
    theta: float = DEFAULT_THETA,
) -> RopeSettings:
    """The settings of a config whose heads have `head_dim` numbers.

    `kinds`: a family's names of scalings and quire's names, if they are not the usual ones.
    `original`: default of the original length; if None the model's length. `partial`: whether rope
    may rotate only a part of each head. `factor` (that part) and `theta` are defaults."""
    rope = rope_fields(fields)
    if any(isinstance(value, dict) for value in rope.values.values()):
        raise UnsupportedModel(f"{rope.source}: settings by kind of layer are not supported")
    theta = rope.positive("rope_theta", fields.positive("rope_theta", theta))
    _refuse_a_second_theta(fields, rope, theta)
    max_len = fields.count("max_position_embeddings")
    kind = rope.word("rope_type", rope.values.get("type") or "default")
    if kind == PROPORTIONAL:
        return _proportional(rope, theta, max_len, head_dim)
    dims = _dims(fields, rope, head_dim, partial=partial, unsaid=factor)
    if kind == "default":
        return RopeSettings(theta, None, max_len, dims)
    known = {name: name for name in _KINDS} if kinds is None else kinds
    if kind not in known:
        raise UnsupportedModel(
            f"{rope.source}: rope type {kind[:40]!r} is not supported; quire has default, "
            f'{", ".join((PROPORTIONAL, *known))}. hf_overrides={{"rope_scaling": None}} runs the '
            "model without it, within its original length."
        )
    original = fields.count(
        "original_max_position_embeddings",
        rope.count("original_max_position_embeddings", original or max_len),
    )
    return _KINDS[known[kind]](rope, _Sizes(theta, max_len, original, dims))


def rope_fields(fields: Fields) -> Fields:
    """The object with the settings, under whichever key the config has it."""
    written = fields.inner("rope_scaling").values and "rope_scaling"
    return fields.inner(written or "rope_parameters")


def read_ropes_by_kind(
    fields: Fields, head_dim: int, thetas: Mapping[str, float], *, scaled: str
) -> dict[str, RopeSettings]:
    """The settings of each kind of layer; `thetas` are defaults.

    `rope_parameters` has them by kind; other keys in it are ignored, as in Transformers.
    `rope_scaling` and `rope_theta` are for the kind `scaled`."""
    given = fields.inner("rope_parameters")
    if given.values and not _is_by_kind(given.values):
        raise fields.unsupported("rope_parameters", f"settings by kind of layer, {[*thetas]}")
    by_kind = {kind: dict(given.inner(kind).values) for kind in thetas}
    by_kind[scaled] |= fields.inner("rope_scaling").values
    thetas = {**thetas, scaled: fields.positive("rope_theta", thetas[scaled])}
    return {
        kind: read_rope(
            Fields(
                {
                    "rope_parameters": said,
                    "max_position_embeddings": fields.values.get("max_position_embeddings"),
                },
                fields.source,
                false_nulls=fields.false_nulls,
            ),
            head_dim,
            theta=thetas[kind],
        )
        for kind, said in by_kind.items()
    }


def _dims(fields: Fields, rope: Fields, head_dim: int, *, partial: bool, unsaid: float) -> int:
    """How many numbers of a head rope rotates."""
    where = fields if rope.values.get("partial_rotary_factor") is None else rope
    factor = where.positive("partial_rotary_factor", unsaid)
    if factor == 1.0:
        return head_dim
    if not partial:
        raise UnsupportedModel(f"{where.source}: partial_rotary_factor is not supported")
    dims = int(head_dim * factor)
    if factor > 1.0 or dims == 0 or dims % 2:
        raise CorruptModel(
            f"{where.source}: partial_rotary_factor {factor:g} of heads of {head_dim} is {dims} "
            f"numbers; it must be an even number from 2 to {head_dim}"
        )
    return dims


def _proportional(rope: Fields, theta: float, max_len: int, head_dim: int) -> RopeSettings:
    """Frequencies as if the whole head rotated, but only the first part of its pairs do."""
    part = rope.positive("partial_rotary_factor", 1.0)
    pairs = int(part * head_dim // 2)
    if not 1 <= pairs <= head_dim // 2:
        rule = f"a part of heads of {head_dim}, in which at least one pair rotates"
        raise rope.wrong("partial_rotary_factor", rule)
    factor = rope.positive("factor", 1.0)
    scaling = None if factor == 1.0 else LinearRope(factor)
    turning = None if pairs == head_dim // 2 else pairs
    return RopeSettings(theta, scaling, max_len, head_dim, turning)


def _refuse_a_second_theta(fields: Fields, rope: Fields, theta: float) -> None:
    """Refuse a scaling beside `rope_parameters` that would silently change theta."""
    beside = fields.inner("rope_parameters")
    other = beside.positive("rope_theta", theta)
    if other != theta:
        raise CorruptModel(
            f"{rope.source} replaces rope_parameters and has no rope_theta: {theta:g} would hold "
            f"instead of the {other:g} in rope_parameters. Write rope_theta into rope_scaling."
        )


@dataclass(frozen=True, slots=True)
class _Sizes:
    theta: float
    max_len: int
    original: int  # the length before positions were stretched
    dims: int


def _linear(rope: Fields, sizes: _Sizes) -> RopeSettings:
    return RopeSettings(sizes.theta, LinearRope(rope.positive("factor")), sizes.max_len, sizes.dims)


def _llama3(rope: Fields, sizes: _Sizes) -> RopeSettings:
    low, high = rope.positive("low_freq_factor"), rope.positive("high_freq_factor")
    if low > high:
        raise CorruptModel(f"{rope.source}: low_freq_factor {low} is above {high}")
    scaling = Llama3Rope(rope.positive("factor"), low, high, sizes.original)
    return RopeSettings(sizes.theta, scaling, sizes.max_len, sizes.dims)


def _yarn(rope: Fields, sizes: _Sizes) -> RopeSettings:
    if sizes.theta <= 1:
        raise rope.wrong("rope_theta", "above 1 for YaRN")
    factor = rope.positive("factor", sizes.max_len / sizes.original)
    scaling = YarnRope(
        factor=factor,
        original_max_len=sizes.original,
        attention_factor=rope.positive("attention_factor", _yarn_attention(rope, factor)),
        # Zero counts as absent, as in Transformers.
        beta_fast=rope.not_negative("beta_fast", 0.0) or 32.0,
        beta_slow=rope.not_negative("beta_slow", 0.0) or 1.0,
        truncate=rope.flag("truncate", True),
    )
    # The config's length may be the original one; the factor gives the stretched length.
    stretched = max(sizes.max_len, int(sizes.original * factor))
    return RopeSettings(sizes.theta, scaling, stretched, sizes.dims)


def _yarn_attention(rope: Fields, factor: float) -> float:
    weight, weight_all = (rope.not_negative(key, 0.0) for key in ("mscale", "mscale_all_dim"))
    if weight and weight_all:
        return yarn_scale(factor, weight) / yarn_scale(factor, weight_all)
    return yarn_scale(factor, 1.0)


def yarn_scale(factor: float, weight: float) -> float:
    """YaRN's factor of cos and sin for texts `factor` times as long. Scores get its square."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _longrope(rope: Fields, sizes: _Sizes) -> RopeSettings:
    """Settings for texts up to the original length. Longer texts need other factors from their
    first token on, so the length would have to be known in advance, and a cached prefix could not
    serve both. See for_length."""
    short, long = (rope.positives(f"{one}_factor", sizes.dims // 2) for one in ("short", "long"))
    factor = rope.positive("factor", sizes.max_len / sizes.original)
    stretched = math.sqrt(1 + math.log(max(factor, 1.0)) / math.log(max(sizes.original, 2)))
    attention = rope.positive("attention_factor", stretched)
    if sizes.original >= sizes.max_len:
        return RopeSettings(sizes.theta, FactorRope(short, attention), sizes.max_len, sizes.dims)
    scaling = FactorRope(short, attention, long, sizes.max_len)
    return RopeSettings(sizes.theta, scaling, sizes.original, sizes.dims)


_KINDS: Mapping[str, Callable[[Fields, _Sizes], RopeSettings]] = {
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}


def long_len(spec: ModelSpec) -> int:
    """The length of texts that a model's second set of longrope factors allows; 0 without such a
    set. A model with such factors has one rope."""
    scaling = spec.rope.scaling
    return scaling.long_len if isinstance(scaling, FactorRope) else 0


def for_length(spec: ModelSpec, asked: int) -> ModelSpec:
    """The same model, with the longrope factors of long texts if `asked` is longer than its own
    allow. They then hold for all texts: when its first tokens are computed it is not known whether
    a text will be long, and other texts may share its beginning."""
    scaling = spec.rope.scaling
    if asked <= spec.max_model_len or not isinstance(scaling, FactorRope) or not scaling.long:
        return spec
    attention = scaling.attention_factor if (own := scaling.long_attention) is None else own
    rope = replace(spec.rope, scaling=FactorRope(scaling.long, attention))
    longer = spec.with_attention(lambda one: replace(one, rope=rope))
    return replace(longer, max_model_len=scaling.long_len)


def overridden(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The config with `overrides`, and a single set of rotary settings.

    An override wins over the config in any spelling. An override that removes a scaling also resets
    the length to that without scaling."""
    merged = {**config, **overrides}
    if not {"rope_scaling", "rope_parameters", "rope_theta"} & overrides.keys():
        return merged
    before = _settings(config)
    rope = _settings(overrides) if _says_scaling(overrides) else before
    if rope is not before and _is_by_kind(rope):
        return {**merged, "rope_scaling": None}
    if _is_by_kind(before):
        raise UnsupportedModel(
            "this model's rope_parameters are by kind of layer: hf_overrides must give all of them."
        )
    if not isinstance(rope, dict):  # read_rope refuses it
        return merged
    theta = overrides.get("rope_theta", rope.get("rope_theta", _theta_of(config)))
    merged |= {"rope_parameters": None, "rope_scaling": {**rope, "rope_theta": theta}}
    # An override may remove a scaling, but not the part of a head that the model was trained with.
    if isinstance(before, dict) and "partial_rotary_factor" in before:
        merged["rope_scaling"].setdefault("partial_rotary_factor", before["partial_rotary_factor"])
    plain = rope.get("rope_type", rope.get("type", "default")) in (None, "default")
    if plain and "max_position_embeddings" not in overrides and isinstance(before, dict):
        lengths = (
            config.get("max_position_embeddings"),
            config.get("original_max_position_embeddings"),
            before.get("original_max_position_embeddings"),
        )
        known = [length for length in lengths if type(length) is int]
        merged["max_position_embeddings"] = min(known, default=lengths[0])
    return merged


def _is_by_kind(rope: Any) -> bool:
    return isinstance(rope, dict) and any(isinstance(value, dict) for value in rope.values())


def _says_scaling(values: Mapping[str, Any]) -> bool:
    return "rope_scaling" in values or "rope_parameters" in values


def _settings(values: Mapping[str, Any]) -> Any:
    return values.get("rope_scaling") or values.get("rope_parameters") or {}


def _theta_of(config: Mapping[str, Any]) -> Any:
    for key in ("rope_scaling", "rope_parameters"):
        inner = config.get(key)
        if isinstance(inner, dict) and inner.get("rope_theta") is not None:
            return inner["rope_theta"]
    return config.get("rope_theta")
