"""Schemas that no finite text fulfils: an object that must hold another of itself.

  {"$defs": {"a": {"type": "object", "properties": {"next": {"$ref": "#/$defs/a"}},
                   "required": ["next"]}}, "$ref": "#/$defs/a"}

A model would open brackets until it runs out of tokens. Which schemas can come to an end is a
least fixed point: first nothing can, then a string can, then an array of strings, and so on.
"""

from __future__ import annotations

from typing import Any

from quire.grammar.schema import walk

# Each round goes one level up; real schemas settle in a few.
_MAX_ROUNDS = 100


def endless(schema: Any) -> str | None:
    """The path of a subschema that never comes to its end and that the text cannot do without,
    or None."""
    nodes = {path: node for path, node in walk(schema) if isinstance(node, dict)}
    paths = {id(node): path for path, node in nodes.items()}
    targets = {
        path: _target(schema, node["$ref"])
        for path, node in nodes.items()
        if isinstance(node.get("$ref"), str)
    }
    if not targets:
        return None
    ends: set[int] = set()
    for _ in range(_MAX_ROUNDS):
        more = {
            id(node)
            for path, node in nodes.items()
            if id(node) not in ends and _can_end(node, targets.get(path), ends)
        }
        ends |= more
        if not more:
            break
    else:
        return None
    if not isinstance(schema, dict) or id(schema) in ends:
        return None
    target = targets.get("$")
    return paths.get(id(target), "$")


def _target(schema: Any, reference: str) -> Any:
    """What a reference within the schema points to; True ("anything") for any other."""
    here = schema
    if not reference.startswith("#"):
        return True
    for name in reference[1:].split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(here, dict) and name in here:
            here = here[name]
        elif isinstance(here, list) and name.isdigit() and int(name) < len(here):
            here = here[int(name)]
        else:
            return True
    return here


def _can_end(node: dict[str, Any], target: Any, ends: set[int]) -> bool:
    def can(schema: Any) -> bool:
        return not isinstance(schema, dict) or id(schema) in ends

    if "const" in node or "enum" in node:
        return True
    if target is not None and not can(target):
        return False
    for keyword in ("anyOf", "oneOf"):
        options = node.get(keyword)
        if isinstance(options, list) and options and not any(map(can, options)):
            return False
    parts = node.get("allOf")
    if isinstance(parts, list) and not all(map(can, parts)):
        return False
    if node.get("type") == "object":
        properties, required = node.get("properties"), node.get("required")
        if isinstance(properties, dict) and isinstance(required, list):
            return all(can(properties.get(name)) for name in required if isinstance(name, str))
    if node.get("type") == "array":
        count, first = node.get("minItems"), node.get("prefixItems")
        count = count if isinstance(count, int) else 0
        first = first if isinstance(first, list) else []
        return all(map(can, first[:count])) and (count <= len(first) or can(node.get("items")))
    return True
