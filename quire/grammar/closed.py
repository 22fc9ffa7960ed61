"""Closes schemas: objects that name their properties get no others, and tuples no further items,
unless the schema says something about these.

JSON Schema allows any other properties to be added. A small model that may add some does so until
its tokens are used up, and the program that named the properties does not read them. So
{"properties": {"a": A}} gets `"additionalProperties": false`, and {"prefixItems": [A]} gets
`"items": false`. Every remaining text is valid under the given schema, and some text remains if
there was one: where several parts of a schema describe one value, each with its own properties,
they stay open.

A schema that names members also gets the type object or array if it has none: JSON Schema then
allows every string and number, too, which is never meant where properties are named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from quire.grammar.schema import Path, children, referred, walk

_PARTS = frozenset({"allOf", "anyOf", "oneOf", "$ref"})  # keywords about the same value
# Keywords under which fewer texts of a part may mean more texts of the whole.
_TURNED = frozenset({"oneOf", "not", "if", "contains"})
_CASES = frozenset({"not", "if", "then", "else", "dependentSchemas", "dependencies", "$dynamicRef"})
_LISTED = frozenset({"enum", "const"})
# Keywords about which members an object or array has, or how many.
_MEMBERS = frozenset(
    {
        *("properties", "patternProperties", "additionalProperties", "unevaluatedProperties"),
        *("minProperties", "maxProperties", "propertyNames", "dependentRequired"),
        *("items", "prefixItems", "additionalItems", "unevaluatedItems", "contains"),
        *("minItems", "maxItems", "uniqueItems"),
    }
)
# Keywords that name members, and so imply the type if there is none.
_OF_OBJECTS = frozenset(word for word in _MEMBERS if word.lower().endswith("properties"))
_OF_OBJECTS -= {"minProperties", "maxProperties"}
_OF_ARRAYS = frozenset({"items", "prefixItems", "additionalItems", "unevaluatedItems"})
_SAYS_MORE = _CASES | _LISTED | {"$ref", "propertyNames", "contains", "uniqueItems"}
_SAYS_ANYTHING = _PARTS | _CASES | _LISTED | _MEMBERS


def close(schema: Any, *, everywhere: bool = False) -> None:
    """Change the schema in place. `everywhere`: close all objects, even if no text remains."""
    found = [node for _, node in walk(schema) if isinstance(node, dict)]
    # Most nodes only give a type: in a schema of megabytes these are not visited again.
    nodes = [node for node in found if not _SAYS_ANYTHING.isdisjoint(node)]
    # Where parts have addresses ($id), it is not known here what a reference leads to.
    has_addresses = any("$id" in node for node in found[1:])
    stay = set(map(id, nodes)) if has_addresses else _stay_open(schema, nodes)
    for node in nodes:
        if id(node) not in stay:
            _say_type(node)
        named = node.get("properties", node.get("patternProperties"))
        says_nothing = isinstance(named, dict) and "unevaluatedProperties" not in node
        if says_nothing and (everywhere or id(node) not in stay):
            node.setdefault("additionalProperties", False)
        first = node.get("prefixItems", node.get("items"))
        says_nothing = isinstance(first, list) and "unevaluatedItems" not in node
        if says_nothing and first and id(node) not in stay:
            node.setdefault("items" if "prefixItems" in node else "additionalItems", False)


def _say_type(node: dict[str, Any]) -> None:
    """Add a type, unless another keyword implies one, or keywords of several types are there."""
    others = {"type", "format", "pattern", "minLength", "maxLength", "multipleOf", "minimum"}
    others |= {"maximum", "exclusiveMinimum", "exclusiveMaximum"} | _PARTS | _LISTED
    kinds = [
        kind
        for kind, words in (("object", _OF_OBJECTS), ("array", _OF_ARRAYS))
        if not words.isdisjoint(node)
    ]
    if len(kinds) == 1 and others.isdisjoint(node):
        node["type"] = kinds[0]


def _stay_open(schema: Any, nodes: list[dict[str, Any]]) -> set[int]:
    """The ids of nodes that must not be closed."""
    if not all(str(node.get("$ref", "#")).startswith("#") for node in nodes):
        return set(map(id, nodes))

    def parts(node: Any) -> list[Any]:
        found = _below(node, _PARTS | _CASES)
        if isinstance(node, dict) and "$ref" in node:
            found.append(referred(schema, str(node["$ref"])))
        return found

    together = [part for node in nodes if not _is_apart(node) for part in parts(node)]
    turned = [part for node in nodes for part in _below(node, _TURNED)]
    return {
        *(id(node) for node in nodes if not _is_enough(node)),
        *_reached(together, parts),
        *_reached(turned, lambda node: [*parts(node), *_below(node, None)]),
    }


def _below(node: Any, words: frozenset[str] | None) -> list[Any]:
    """The subschemas directly inside a node: of these keywords, or of any."""
    if not isinstance(node, dict):
        return []
    said = node if words is None else {word: node[word] for word in words & node.keys()}
    return [inner for _, inner in children(Path(), said)]


def _reached(first: Iterable[Any], following: Callable[[Any], list[Any]]) -> set[int]:
    """The ids of these nodes and of all that follow from them."""
    found, left = set[int](), list(first)
    while left:
        node = left.pop()
        if id(node) not in found:
            found.add(id(node))
            left += following(node)
    return found


def _is_apart(node: dict[str, Any]) -> bool:
    """Whether its parts may each be closed alone: they are alternatives, or there is only one, and
    no other keyword describes the value."""
    words = _PARTS & node.keys()
    alone = not (_SAYS_ANYTHING - words | {"required"}) & node.keys()
    return alone and len(words) == 1 and ("allOf" not in words or len(_below(node, words)) == 1)


def _is_enough(node: dict[str, Any]) -> bool:
    """Whether the members that the node names include all that the value must have."""
    names, required = node.get("properties", {}), node.get("required", [])
    first = node.get("prefixItems", node.get("items"))
    num_first = len(first) if isinstance(first, list) else 0
    if not isinstance(names, dict) or not isinstance(required, list) or _SAYS_MORE & node.keys():
        return False
    fewest = (("minProperties", len(required)), ("minItems", num_first))
    if not all(_is_at_most(node.get(word, 0), most) for word, most in fewest):
        return False
    # Parts may add required names among these, nothing else.
    for part in _below(node, _PARTS):
        if not isinstance(part, dict) or _SAYS_ANYTHING & part.keys():
            return False
        needed = part.get("required", [])
        required = [*required, *(needed if isinstance(needed, list) else [needed])]
    return all(isinstance(name, str) and name in names for name in required)


def _is_at_most(value: Any, most: int) -> bool:
    return isinstance(value, int) and value <= most
