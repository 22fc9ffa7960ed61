"""Reads what layers consist of, from configs that list every branch as a layer. No torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from quire.errors import UnsupportedModel
from quire.families.fields import Fields
from quire.families.mamba import KINDS
from quire.families.reading import MAX_LAYERS

PATTERN = "hybrid_override_pattern"


def branches_of(
    fields: Fields, usual: Sequence[str], letters: Mapping[str, str], following: Collection[str]
) -> list[tuple[str, str | None]]:
    """Of each layer its first branch, and the one of the kinds `following` that comes behind it, if
    any: Mamba, experts, attention, Mamba -> (Mamba, experts), (attention, None), (Mamba, None).

    Branches are listed by name, or in a pattern by letter; `usual`: those that a config leaves
    out."""
    known, made = (
        {**KINDS, **{kind: kind for kind in letters.values()}},
        list[tuple[str, str | None]](),
    )
    for number, name in enumerate(_listed(fields, usual, letters)):
        kind = known.get(name) if isinstance(name, str) else None
        if kind is None:
            raise UnsupportedModel(f"{fields.source}: layer type {str(name)[:40]!r}")
        if kind not in following:
            made.append((kind, None))
        elif made and made[-1][1] is None:
            made[-1] = made[-1][0], kind
        else:
            raise UnsupportedModel(
                f"{fields.source}: layer {number} is a feed-forward, and comes first or behind "
                "another; quire has one behind each layer that attends or keeps a state"
            )
    return made


def _listed(fields: Fields, usual: Sequence[str], letters: Mapping[str, str]) -> Sequence[object]:
    for key in ("layers_block_type", "layer_types"):
        given = fields.values.get(key)
        if given is not None:
            if not isinstance(given, list) or not 0 < len(given) <= MAX_LAYERS:
                raise fields.wrong(key, f"a list of 1 to {MAX_LAYERS:,} names")
            return given
    pattern = fields.word(PATTERN, "")
    if len(pattern) > MAX_LAYERS:
        raise fields.wrong(PATTERN, f"of at most {MAX_LAYERS:,} letters")
    return [letters.get(letter, letter) for letter in pattern] or usual
