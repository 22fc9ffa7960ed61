"""Schemas that no finite text fulfils: an object that must hold another of itself.

  {"$defs": {"a": {"type": "object", "properties": {"next": {"$ref": "#/$defs/a"}},
                   "required": ["next"]}}, "$ref": "#/$defs/a"}

A model would open brackets until it runs out of tokens. Which schemas can come to an end is a
least fixed point: first nothing can, then a string can, then an array of strings, and so on. What
never does and can be done without, such as a property that is not required, is left out.
"""

from __future__ import annotations

from typing import Any

from quire.grammar.schema import Path, referred, walk

# Each round goes at least one level up; real schemas settle in a few.
_MAX_ROUNDS = 100
# Looked at in all rounds together: a schema of 100,000 values is not judged for long.
_MAX_LOOKED_AT = 300_000


def leave_out_endless(schema: Any) -> Path | None:
    """The path of a subschema that never comes to its end and that the text cannot do without;
    or None, and then others that never do allow no value any more."""
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
    # What is not among the nodes, such as a schema under "examples", is not judged.
    stuck = set(paths)
    waiting = nodes[::-1]  # the inner before the outer, and definitions first
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
        if id(node) in stuck:  # and so is each reference to it
            node.clear()
            node["enum"] = []
    return None


def _target(schema: Any, reference: str) -> Any:
    """What a reference within the schema points to; True ("anything") for any other."""
    found = referred(schema, reference)
    return True if found is None else found


def _can_end(node: dict[str, Any], target: Any, stuck: set[int]) -> bool:
    """Whether the node has a text that ends, as far as known: `stuck` are the ids of those of
    which that is not known yet."""

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
