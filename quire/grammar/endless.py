"""Finds schemas that no finite text fulfils: an object that must contain another of its own kind.

  {"$defs": {"a": {"type": "object", "properties": {"next": {"$ref": "#/$defs/a"}},
                   "required": ["next"]}}, "$ref": "#/$defs/a"}

A model would open brackets until it runs out of tokens. The schemas that can end are a least fixed
point: first none can, then a string can, then an array of strings, and so on. A schema that never
can, but is not needed, such as a property that is not required, is left out.
"""

from __future__ import annotations

from typing import Any

from quire.grammar.schema import Path, referred, walk

# Each round goes at least one level up; real schemas need only a few.
_MAX_ROUNDS = 100
# Nodes visited in all rounds together, so that a schema of 100,000 values does not take long.
_MAX_LOOKED_AT = 300_000


def leave_out_endless(schema: Any) -> Path | None:
    """The path of a subschema that never ends and that the text needs. If there is none, None, and
    other subschemas that never end are changed so that they allow no value."""
    found = [(path, node) for path, node in walk(schema) if isinstance(node, dict)]
    paths = {id(node): path for path, node in found}
    nodes = [node for _, node in found]
    targets = {
        id(node): _target(schema, node["$ref"])
        for node in nodes
        if isinstance(node.get("$ref"), str)
    }
    if not targets or not isinstance(schema, dict):
        return None
    # Schemas that `walk` does not visit, such as those under "examples", are not judged.
    stuck = set(paths)
    waiting = nodes[::-1]  # inner nodes before outer ones, and definitions first
    for _ in range(min(_MAX_ROUNDS, 1 + _MAX_LOOKED_AT // len(nodes))):
        num_stuck = len(stuck)
        for node in waiting:
            if _can_end(node, targets.get(id(node)), stuck):
                stuck.discard(id(node))
        waiting = [node for node in waiting if id(node) in stuck]
        if len(stuck) == num_stuck:
            break
    else:
        return None
    if id(schema) in stuck:
        return paths.get(id(targets.get(id(schema))), Path())
    for node in nodes:
        if id(node) in stuck:  # then each reference to it is stuck, too
            node.clear()
            node["enum"] = []
    return None


def _target(schema: Any, reference: str) -> Any:
    """The target of a reference within the schema; True ("anything") for other references."""
    found = referred(schema, reference)
    return True if found is None else found


def _can_end(node: dict[str, Any], target: Any, stuck: set[int]) -> bool:
    """Whether the node has a finite text, as far as known; `stuck` has the ids of nodes for which
    that is not known yet."""

    def can(schema: Any) -> bool:
        return not isinstance(schema, dict) or id(schema) not in stuck

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
