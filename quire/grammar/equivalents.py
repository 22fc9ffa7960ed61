"""Replaces keywords that llguidance does not support by others that mean the same.

  {"$anchor": "a"}, {"$ref": "#a"}            {"$ref": "#/$defs/..."}
  {"oneOf": [A, B]}, A and B never both       {"anyOf": [A, B]}
  {"propertyNames": {"enum": ["a", "b"]}}     {"properties": {"a": ..., "b": ...}}
  {"propertyNames": {"pattern": "^x"}}        {"patternProperties": {"^x": ...}}
  {"unevaluatedProperties": false}            {"additionalProperties": false}

The last only if no other keyword could evaluate more properties. Where nothing means the same the
keyword stays, and is refused by name when it is compiled. Discriminated unions of pydantic and
records of zod need this.
"""

from __future__ import annotations

import json
from typing import Any

from quire.grammar.schema import Path, referred, walk

_MAX_DEPTH = 6  # how deep properties are compared to tell two options apart
_MAX_COMPARED = 5_000  # pairs of subschemas that are compared in a whole schema
_NOTES = frozenset({"type", "title", "description"})
_APPLICATORS = frozenset({"$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "not"})
_TYPE_OF = {bool: "boolean", int: "number", float: "number", str: "string", list: "array"}


def replace_unsupported(schema: Any) -> None:
    """Change the schema in place."""
    nodes = [(path, node) for path, node in walk(schema) if isinstance(node, dict)]
    anchors = _anchors(schema, nodes)
    apart = _Apart(schema)
    for _, node in nodes:
        if isinstance(reference := node.get("$ref"), str):
            node["$ref"] = anchors.get(reference, reference)
        options = node.get("oneOf")
        if isinstance(options, list) and "anyOf" not in node and apart.are_all(options):
            _rename(node, "oneOf", "anyOf")
        _names(schema, node)
        if not _APPLICATORS & node.keys():
            _rename(node, "unevaluatedProperties", "additionalProperties")
            is_old = isinstance(node.get("items"), list)
            _rename(node, "unevaluatedItems", "additionalItems" if is_old else "items")


def _anchors(schema: Any, nodes: list[tuple[Path, dict[str, Any]]]) -> dict[str, str]:
    """{"#name": "#/$defs/..."}; empty if parts have addresses ($id) of their own, because names
    then belong to these."""
    found: dict[str, str] = {}
    for path, node in nodes:
        for keyword in ("$anchor", "$id"):
            name = node.get(keyword)
            if not isinstance(name, str):
                continue
            if keyword == "$anchor" or name.startswith("#"):
                found["#" + name.removeprefix("#")] = path.pointer
            elif node is not schema:
                return {}
    return found


def _rename(node: dict[str, Any], keyword: str, by: str) -> None:
    """Rename a keyword at its place, since the order of keywords is that of properties. If `by`
    exists already, its value is kept."""
    items = [(by if name == keyword else name, value) for name, value in node.items()]
    if keyword in node:
        said = node.get(by)
        node.clear()
        node.update(items)
        if said is not None:
            node[by] = said


def _names(schema: Any, node: dict[str, Any]) -> None:
    """Replace `propertyNames` by properties with these names, or by patternProperties."""
    names = node.get("propertyNames")
    if isinstance(names, dict) and names.keys() - _NOTES == {"$ref"}:
        names = referred(schema, str(names["$ref"]))
    if names is True or (isinstance(names, dict) and _says_nothing(names)):
        del node["propertyNames"]
        return
    named = {"properties", "patternProperties"} & node.keys()
    if not isinstance(names, dict) or named or names.get("type", "string") != "string":
        return
    said, value = names.keys() - _NOTES, node.get("additionalProperties", True)
    listed = [names["const"]] if said == {"const"} else names.get("enum")
    if said <= {"const", "enum"} and isinstance(listed, list):
        texts = [text for text in listed if isinstance(text, str)]
        node["properties"] = dict.fromkeys(dict.fromkeys(texts), value)
    elif said == {"pattern"} and isinstance(names["pattern"], str):
        node["patternProperties"] = {names["pattern"]: value}
    else:
        return
    del node["propertyNames"]
    node["additionalProperties"] = False


def _says_nothing(names: dict[str, Any]) -> bool:
    return names.keys() <= _NOTES and names.get("type", "string") == "string"


class _Apart:
    """Finds out whether no value can fulfil two schemas at once, as far as that is easy to see."""

    def __init__(self, root: Any) -> None:
        self._root, self._left = root, _MAX_COMPARED

    def are_all(self, options: list[Any]) -> bool:
        return all(
            self._are(one, other, 0) for i, one in enumerate(options) for other in options[i + 1 :]
        )

    def _are(self, one: Any, other: Any, depth: int) -> bool:
        self._left -= 1
        if depth > _MAX_DEPTH or self._left < 0:
            return False
        if one is False or other is False:
            return True
        if self._by_parts(one, other, depth) or self._by_parts(other, one, depth):
            return True
        if not isinstance(one, dict) or not isinstance(other, dict):
            return False
        return self._by_value(one, other) or self._by_property(one, other, depth)

    def _by_parts(self, one: Any, other: Any, depth: int) -> bool:
        """By parts that `one` must fulfil, too."""
        if not isinstance(one, dict):
            return False
        found = referred(self._root, str(one["$ref"])) if "$ref" in one else None
        parts = {"allOf": [] if found is None else [found]}
        for keyword in ("allOf", "anyOf", "oneOf"):
            listed = one.get(keyword)
            parts[keyword] = [
                *parts.get(keyword, []),
                *(listed if isinstance(listed, list) else []),
            ]
        every, *either = [
            [self._are(part, other, depth + 1) for part in listed] for listed in parts.values()
        ]
        return any(every) or any(options and all(options) for options in either)

    def _by_value(self, one: dict[str, Any], other: dict[str, Any]) -> bool:
        types = [_types(node) for node in (one, other)]
        if not types[0] & types[1]:
            return True
        values = [_values(node) for node in (one, other)]
        return None not in values and not set(values[0] or ()) & set(values[1] or ())

    def _by_property(self, one: dict[str, Any], other: dict[str, Any], depth: int) -> bool:
        """By a property that one of them requires and that cannot be the same in both."""
        if _types(one) != {"object"} or _types(other) != {"object"}:
            return False
        properties = [node.get("properties") for node in (one, other)]
        mine, theirs = (found if isinstance(found, dict) else {} for found in properties)
        required = [node.get("required") for node in (one, other)]
        needed = [name for names in required if isinstance(names, list) for name in names]
        return any(
            self._are(mine[name], theirs[name], depth + 1)
            for name in needed
            if isinstance(name, str) and name in mine and name in theirs
        )


def _values(node: dict[str, Any]) -> list[str] | None:
    """The only values that a node allows, as JSON; None if it does not list them, or lists values
    that can be written in several ways."""
    listed = [node["const"]] if "const" in node else node.get("enum")
    plain = ("boolean", "string", "null")
    if not isinstance(listed, list) or any(_type_of(value) not in plain for value in listed):
        return None
    return [json.dumps(value) for value in listed]


def _type_of(value: Any) -> str:
    return _TYPE_OF.get(type(value), "null" if value is None else "object")


def _types(node: dict[str, Any]) -> set[str]:
    if "const" in node:
        return {_type_of(node["const"])}
    if isinstance(node.get("enum"), list):
        return {_type_of(value) for value in node["enum"]}
    given = node.get("type", [*_TYPE_OF.values(), "null", "object"])
    names = given if isinstance(given, list) else [given]
    return {"number" if name == "integer" else str(name) for name in names}
