"""Merges objects that a schema describes in several parts into one.

  {"allOf": [{"$ref": "#/$defs/A"}, {"properties": {"b": B}}]}, A = {"properties": {"a": ...}}
  {"properties": {"a": ..., "b": B}}

The same values fulfil both. The second can be closed (closed.py), and has an automaton if its
properties have one. Parts stay as they are if they say more than which properties there are, or say
different things about one property.
"""

from __future__ import annotations

import copy
import json
from typing import Any

from quire.grammar.schema import referred, size, walk

_NOTES = frozenset({"title", "description", "default", "examples", "deprecated", "$comment"})
_OF_PARTS = frozenset({"type", "properties", "required", "additionalProperties"})
_BESIDE = frozenset({"allOf", "unevaluatedProperties", "$defs", "definitions", "$schema"})
_MAX_REFERENCES = 6  # in a chain
_MAX_COPIED = 5_000  # values in a whole schema, because definitions may double with each copy


def merge_parts(schema: Any) -> None:
    """Change the schema in place."""
    nodes = [node for _, node in walk(schema) if isinstance(node, dict)]
    # A reference into a list would lead nowhere afterwards; below an $id it leads elsewhere.
    if any("/allOf/" in str(node.get("$ref")) or "$id" in node for node in nodes[1:]):
        return
    waiting, left = [node for node in reversed(nodes) if "allOf" in node], _MAX_COPIED
    for _ in range(_MAX_REFERENCES):  # a part may need merging itself
        for node in waiting:
            parts = _parts(schema, node)
            left -= size(parts)[0]
            if left < 0:
                return
            made = _merged(parts) if len(parts) > 1 else None
            if made is not None:
                rest = {word: one for word, one in node.items() if word not in _OF_PARTS}
                node.clear()
                node.update(copy.deepcopy(made) | rest)
                del node["allOf"]
        waiting = [node for node in waiting if "allOf" in node]


def _parts(schema: Any, node: dict[str, Any]) -> list[dict[str, Any]]:
    """The node's own keywords and its parts, in order; none if they cannot be merged."""
    listed = node.get("allOf")
    if not isinstance(listed, list) or not listed or not _says_only(node, _OF_PARTS | _BESIDE):
        return []
    own = {word: node[word] for word in _OF_PARTS & node.keys()}
    found = [_resolved(schema, part) for part in listed]
    order = [word for word in node if word in ("properties", "allOf")]
    parts = [own, *found] if order[0] == "properties" else [*found, own]
    is_whole = all(part is not None and _says_only(part, _OF_PARTS) for part in parts)
    return [part for part in parts if part] if is_whole else []


def _says_only(node: dict[str, Any], words: frozenset[str]) -> bool:
    return all(word in words or word in _NOTES or word.startswith("x-") for word in node)


def _resolved(schema: Any, part: Any) -> dict[str, Any] | None:
    """A part, or the target of a part that is only a reference; None if that is no object."""
    for _ in range(_MAX_REFERENCES):
        if not isinstance(part, dict) or "$ref" not in part:
            break
        alone = _says_only(part, frozenset({"$ref"}))
        part = referred(schema, str(part["$ref"])) if alone else None
    return part if isinstance(part, dict) else None


def _merged(parts: list[dict[str, Any]]) -> dict[str, Any] | None:
    """One schema for all parts; None if there is none that means the same."""
    properties, required, closed = dict[str, Any](), list[Any](), list[set[str]]()
    kinds = {kind if isinstance(kind := part.get("type", "any"), str) else "" for part in parts}
    for part in parts:
        named, needed = part.get("properties", {}), part.get("required", [])
        others = part.get("additionalProperties", True)
        if not isinstance(named, dict) or not isinstance(needed, list) or type(others) is not bool:
            return None
        shared = {name: properties.get(name, one) for name, one in named.items()}
        if json.dumps(shared) != json.dumps(named):
            return None
        properties |= named
        required += [name for name in needed if name not in required]
        closed += [] if others else [set(named)]
    allowed = set.intersection(*closed) if closed else {*properties, *map(str, required)}
    if not kinds <= {"object", "any"} or not allowed.issuperset(map(str, required)):
        return None
    made: dict[str, Any] = {"type": "object"} if "object" in kinds else {}
    if any("properties" in part for part in parts):
        made["properties"] = {name: one for name, one in properties.items() if name in allowed}
    made |= {"required": required} if required else {}
    says = [part["additionalProperties"] for part in parts if "additionalProperties" in part]
    return {**made, "additionalProperties": all(says)} if says else made
