"""The config of compressed-tensors: groups of modules, each with its own numbers. No torch."""

from __future__ import annotations

from typing import Any

from quire.errors import UnsupportedModel
from quire.families.fields import Fields
from quire.weights.quantised.layout import Layout, Rule
from quire.weights.quantised.patterns import Names, read_names

FORMATS = ("pack-quantized", "int-quantized", "float-quantized")
EVERY_MODULE = "Linear"
MOST_GROUPS = 1_000


def read_compressed(fields: Fields) -> tuple[Rule, ...]:
    """The rules of a config: modules to be ignored, then the groups."""
    for key in ("sparsity_config", "transform_config"):
        given = fields.values.get(key)
        dense = isinstance(given, dict) and given.get("format") == "dense"
        if given and not dense:
            raise _refused(fields, key, given, "neither sparse nor turned weights are read")
    groups = fields.values.get("config_groups")
    if not isinstance(groups, dict) or not 0 < len(groups) <= MOST_GROUPS:
        raise _refused(fields, "config_groups", groups, "it must have one group or more")
    ignored = read_names(fields.values.get("ignore"), fields.source, "ignore")
    rules = [Rule(ignored, None)] if ignored != Names() else []
    for name, group in groups.items():
        where = f"{fields.source}: config_groups.{name[:100]}"
        if not isinstance(group, dict):
            raise UnsupportedModel(f"{where} must be an object, it is {str(group)[:100]}")
        given = {"format": fields.values.get("format"), **_without_nulls(group)}
        rules.append(_rule(Fields(given, where)))
    return tuple(rules)


def _without_nulls(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _rule(group: Fields) -> Rule:
    stored = group.word("format", "")
    if stored not in FORMATS:
        raise _refused(group, "format", stored, f"of its formats {', '.join(FORMATS)} are read")
    weights = group.values.get("weights")
    if not isinstance(weights, dict):
        raise _refused(group, "weights", weights, "a group says how its weights are rounded")
    numbers = Fields(weights, f"{group.source}.weights")
    names = read_names(group.values.get("targets"), group.source, "targets")
    every = EVERY_MODULE in names.parts
    return Rule(None if every else names, _layout(stored, numbers))


def _layout(stored: str, weights: Fields) -> Layout:
    bits, kind = weights.count("num_bits", 8), weights.word("type", "int")
    strategy = weights.word("strategy", "tensor")
    if stored == "float-quantized":
        if (bits, kind) != (8, "float"):
            raise _refused(weights, "num_bits", bits, "of floats those of 8 bits (e4m3) are read")
        return Layout("fp8", 8, block=_block(weights) if strategy == "block" else None)
    allowed = (4, 8) if stored == "pack-quantized" else (8,)
    if kind != "int" or bits not in allowed:
        wanted = " and ".join(str(one) for one in allowed)
        raise _refused(weights, "num_bits", bits, f"{stored} is read with ints of {wanted} bits")
    if strategy not in ("tensor", "channel", "group"):
        raise _refused(weights, "strategy", strategy, "tensor, channel and group are read")
    group = weights.count("group_size") if strategy == "group" else 0
    layout = "packed" if stored == "pack-quantized" else "int"
    return Layout(
        "packed" if layout == "packed" else "int", bits, group, weights.flag("symmetric", True)
    )


def _block(weights: Fields) -> tuple[int, int]:
    block = weights.values.get("block_structure")
    match block:
        case [int(rows), int(columns)] if rows > 0 and columns > 0:
            return rows, columns
    raise _refused(weights, "block_structure", block, "blocks are two whole numbers")


def _refused(fields: Fields, key: str, value: object, why: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{fields.source}: {key} {str(value)[:100]!r}: {why}. Take the same model in another "
        "format, a GGUF file, or its original weights."
    )
