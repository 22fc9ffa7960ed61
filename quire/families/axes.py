"""Positions of three coordinates, each of which rotates its own pairs of a head. No torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from quire.errors import UnsupportedModel
from quire.families.fields import Fields
from quire.families.rope_config import rope_fields
from quire.layer_plan import AttentionPlan
from quire.spec import ModelSpec

_MOST_PAIRS = 1 << 16
_OWN = ("mrope_section", "mrope_interleaved", "type", "rope_type")


def read_with_axes(
    fields: Fields,
    read: Callable[[Fields], ModelSpec],
    unsaid: tuple[int, int, int],
    *,
    interleaved: bool,
) -> ModelSpec:
    """The spec that `read` makes of a config, with the coordinate of each pair (Rope.axes). The
    config gives the number of pairs per coordinate, `unsaid` if it does not; the pairs of a
    coordinate are next to each other, or the coordinates alternate (`interleaved`)."""
    said, beside = rope_fields(fields).values, fields.inner("rope_scaling").values
    sections = said.get("mrope_section") or unsaid
    if not _are_counts(sections):
        rule = f"an object whose mrope_section has three whole numbers up to {_MOST_PAIRS:,}"
        raise fields.wrong("rope_scaling", rule)
    plain: dict[str, Any] = {key: value for key, value in said.items() if key not in _OWN}
    kind = said.get("rope_type") or said.get("type") or "default"
    plain["rope_type"] = "default" if kind == "mrope" else kind
    values = {**fields.values, "rope_scaling" if beside else "rope_parameters": plain}
    spec = read(Fields(values, fields.source, false_nulls=fields.false_nulls))

    def with_axes(one: AttentionPlan) -> AttentionPlan:
        if one.rope is None:
            return one
        pairs = one.rope.dims // 2
        if not interleaved and sum(sections) != pairs:
            raise UnsupportedModel(
                f"{fields.source}: mrope_section must add up to the {pairs} pairs of a head that "
                f"rotate, it is {[*sections]}"
            )
        axes = _interleaved(sections, pairs) if interleaved else _side_by_side(sections)
        return replace(one, rope=replace(one.rope, axes=axes))

    return spec.with_attention(with_axes)


def _are_counts(sections: object) -> bool:
    if not isinstance(sections, list | tuple) or len(sections) != 3:
        return False
    return all(type(one) is int and 0 <= one <= _MOST_PAIRS for one in sections)


def _side_by_side(sections: list[int] | tuple[int, ...]) -> tuple[int, ...]:
    """(2, 1, 1) -> 0 0 1 2"""
    return tuple(axis for axis, count in enumerate(sections) for _ in range(count))


def _interleaved(sections: list[int] | tuple[int, ...], pairs: int) -> tuple[int, ...]:
    """0 1 2 0 1 2 ... until the second and third coordinate have their number of pairs, then 0."""
    return tuple(
        pair % 3 if pair % 3 and pair < 3 * sections[pair % 3] else 0 for pair in range(pairs)
    )
