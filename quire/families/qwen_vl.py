"""The text of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: Qwen2 and Qwen3 with positions of three
coordinates, each turning its own pairs of a head. No torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from quire.families import qwen2, qwen3
from quire.families.family import Family
from quire.families.fields import Fields
from quire.layer_plan import AttentionPlan
from quire.spec import ModelSpec

ROPES = ("rope_scaling", "rope_parameters")
_OWN = ("mrope_section", "mrope_interleaved", "type", "rope_type")


def read_qwen2(fields: Fields) -> ModelSpec:
    return _read(fields, qwen2.read, (16, 24, 24), interleaved=False)


def read_qwen3(fields: Fields) -> ModelSpec:
    return _read(fields, qwen3.read, (24, 20, 20), interleaved=True)


def _read(
    fields: Fields,
    read: Callable[[Fields], ModelSpec],
    unsaid: tuple[int, int, int],
    *,
    interleaved: bool,
) -> ModelSpec:
    said: dict[str, Any] = {}
    for key in ROPES:
        said |= fields.inner(key).values
    sections = said.get("mrope_section") or unsaid
    if not isinstance(sections, list | tuple) or len(sections) != 3:
        raise fields.wrong("rope_scaling", "an object whose mrope_section has three numbers")
    plain = {k: v for k, v in said.items() if k not in _OWN or v not in ("mrope", "default")}
    plain.pop("mrope_section", None)
    plain.pop("mrope_interleaved", None)
    values = {**fields.values, "rope_scaling": None, "rope_parameters": plain or None}
    spec = read(Fields(values, fields.source))

    def with_axes(one: AttentionPlan) -> AttentionPlan:
        pairs = one.head_dim // 2
        axes = _interleaved(sections, pairs) if interleaved else _side_by_side(sections, pairs)
        return replace(one, rope=one.rope and replace(one.rope, axes=axes))

    return spec.with_attention(with_axes)


def _side_by_side(sections: list[int] | tuple[int, ...], pairs: int) -> tuple[int, ...]:
    """(2, 1, 1) -> 0 0 1 2"""
    axes = [axis for axis, count in enumerate(sections) for _ in range(count)]
    return tuple((axes + [0] * pairs)[:pairs])


def _interleaved(sections: list[int] | tuple[int, ...], pairs: int) -> tuple[int, ...]:
    """0 1 2 0 1 2 .. as far as the second and the third reach, then 0."""
    return tuple(
        pair % 3 if pair % 3 and pair < 3 * sections[pair % 3] else 0 for pair in range(pairs)
    )


QWEN2 = Family(
    name="qwen2_vl",
    architectures=("Qwen2_5_VLForConditionalGeneration", "Qwen2VLForConditionalGeneration"),
    model_types=("qwen2_5_vl", "qwen2_5_vl_text", "qwen2_vl", "qwen2_vl_text"),
    read=read_qwen2,
)
QWEN3 = Family(
    name="qwen3_vl",
    architectures=("Qwen3VLForConditionalGeneration",),
    model_types=("qwen3_vl", "qwen3_vl_text"),
    read=read_qwen3,
)
