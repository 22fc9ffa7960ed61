"""The config of compressed-tensors: groups of modules, each with its own numbers. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from quire.errors import UnsupportedModel
from quire.families.fields import Fields
from quire.weights.quantised.layout import Layout, Rule, refused
from quire.weights.quantised.patterns import Names, read_names

PACKED = "pack-quantized"
# Unpacked codes in bytes; the `weights` object says their type.
PLAIN = ("int-quantized", "float-quantized", "naive-quantized")
# Formats with fixed numbers: bits of the floats, columns of a group, and the layout.
FIXED = {
    "nvfp4-pack-quantized": (4, 16, Layout("nvfp4", 4, 16)),
    "mxfp4-pack-quantized": (4, 32, Layout("mxfp4", 4, 32)),
    "mxfp8-quantized": (8, 32, Layout("fp8", 8, block=(1, 32))),
}
FORMATS = (PACKED, *PLAIN, *FIXED)
EVERY_MODULE = "Linear"
MOST_GROUPS = 1_000


def read_compressed(fields: Fields) -> tuple[Rule, ...]:
    """The rules of a config: first ignored modules, then groups that name modules, then groups with
    expressions, then the group for all others."""
    for key in ("sparsity_config", "transform_config"):
        given = fields.values.get(key)
        if given and not _says_nothing(given):
            raise refused(fields, key, "neither sparse nor turned weights are read")
    groups = fields.values.get("config_groups")
    if not isinstance(groups, dict) or not 0 < len(groups) <= MOST_GROUPS:
        raise refused(fields, "config_groups", "it must have one group or more")
    ignored = read_names(fields.values.get("ignore"), fields.source, "ignore")
    found: list[tuple[int, Rule]] = [(0, Rule(ignored, None))] if ignored != Names() else []
    for name, group in groups.items():
        where = f"{fields.source}: config_groups.{name[:100]}"
        if not isinstance(group, dict):
            raise UnsupportedModel(f"{where} must be an object, it is {str(group)[:100]}")
        given = {"format": fields.values.get("format"), **_without_nulls(group)}
        found += _rules(Fields(given, where))
    return tuple(rule for _, rule in sorted(found, key=lambda one: one[0]))


def _says_nothing(given: object) -> bool:
    return isinstance(given, dict) and (
        given.get("format") == "dense" or given.get("config_groups") == {}
    )


def _without_nulls(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _rules(group: Fields) -> Iterator[tuple[int, Rule]]:
    """The rules of a group, each with its rank (1: names, 2: expressions, 3: all). None if the
    group only quantises activations or KV, whose scales quire computes itself."""
    weights = group.values.get("weights")
    if weights is None:
        return
    stored = group.word("format", "")
    if stored not in FORMATS:
        raise refused(group, "format", f"of its formats {', '.join(FORMATS)} are read")
    if not isinstance(weights, dict):
        raise refused(group, "weights", "it must be an object")
    layout = _layout(stored, Fields(weights, f"{group.source}.weights"))
    names = read_names(group.values.get("targets"), group.source, "targets")
    parts = tuple(part for part in names.parts if part != EVERY_MODULE)
    if parts:
        yield 1, Rule(Names(parts), layout)
    if names.expressions:
        yield 2, Rule(Names((), names.expressions), layout)
    if len(parts) < len(names.parts):
        yield 3, Rule(None, layout)


def _layout(stored: str, weights: Fields) -> Layout:
    bits, kind = weights.count("num_bits", 8), weights.word("type", "int")
    if stored in FIXED:
        wide, group, layout = FIXED[stored]
        if (bits, kind, weights.count("group_size")) != (wide, "float", group):
            rule = f"{stored} has floats of {wide} bits in groups of {group}"
            raise refused(weights, "num_bits", rule)
        return layout
    strategy = weights.word("strategy", _strategy(weights))
    group = weights.count("group_size") if strategy == "group" else 0
    if kind == "float":
        if stored == PACKED or bits != 8:
            raise refused(weights, "num_bits", "of floats those of 8 bits (e4m3) are read")
        block = (1, group) if group else None
        return Layout("fp8", 8, block=_block(weights) if strategy == "block" else block)
    if kind != "int" or bits > 8:
        raise refused(weights, "num_bits", f"{stored} is read with ints of up to 8 bits")
    if strategy not in ("tensor", "channel", "group"):
        raise refused(weights, "strategy", "tensor, channel and group are read")
    symmetric = weights.flag("symmetric", True)
    if stored == PACKED:
        return Layout("packed", bits, group, symmetric)
    return Layout("int", 8, group, symmetric)  # codes of fewer bits are in bytes as well


def _strategy(weights: Fields) -> str:
    """The default strategy."""
    size = weights.values.get("group_size")
    return "tensor" if size is None else "channel" if size == -1 else "group"


def _block(weights: Fields) -> tuple[int, int]:
    block = weights.values.get("block_structure")
    match block:
        case [int(rows), int(columns)] if rows > 0 and columns > 0:
            return rows, columns
    raise refused(weights, "block_structure", "blocks are two whole numbers")
