"""Objects that name their properties have no others, and tuples no further items, unless the schema
says something of these.

JSON Schema lets any others be added. A small model that may add some adds them until its tokens are
used up, and the program that named the properties does not read them. So {"properties": {"a": A}}
gets `"additionalProperties": false`, and {"prefixItems": [A]} gets `"items": false`. Every text
that is left is valid under the schema as it was given, and some text is left if there was one: what
several parts of a schema say of the same value, each naming properties of its own, stays open.

Likewise what names members is an object or an array where no type is said: to JSON Schema the same
words allow every string and number, which is never meant where properties are named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from quire.grammar.schema import Path, children, referred, walk

_PARTS = frozenset({"allOf", "anyOf", "oneOf", "$ref"})  # of the same value
# Where fewer texts here may be more texts of the whole: of two options both, or neither.
_TURNED = frozenset({"oneOf", "not", "if", "contains"})
_CASES = frozenset({"not", "if", "then", "else", "dependentSchemas", "dependencies", "$dynamicRef"})
_LISTED = frozenset({"enum", "const"})
# What says, of an object or an array, which members it has or how many.
_MEMBERS = frozenset(
    {
        *("properties", "patternProperties", "additionalProperties", "unevaluatedProperties"),
        *("minProperties", "maxProperties", "propertyNames", "dependentRequired"),
        *("items", "prefixItems", "additionalItems", "unevaluatedItems", "contains"),
        *("minItems", "maxItems", "uniqueItems"),
    }
)
# Which name members, so that they say the type where nothing else does.
_OF_OBJECTS = frozenset(word for word in _MEMBERS if word.lower().endswith("properties"))
_OF_OBJECTS -= {"minProperties", "maxProperties"}
_OF_ARRAYS = frozenset({"items", "prefixItems", "additionalItems", "unevaluatedItems"})
_SAYS_MORE = _CASES | _LISTED | {"$ref", "propertyNames", "contains", "uniqueItems"}
_SAYS_ANYTHING = _PARTS | _CASES | _LISTED | _MEMBERS


def close(schema: Any, *, everywhere: bool = False) -> None:
    """Change the schema in place. `everywhere`: all objects, be it that no text is left."""
    found = [node for _, node in walk(schema) if isinstance(node, dict)]
    # Most say what type a value has and no more: of a schema of megabytes these are not looked at.
    nodes = [node for node in found if not _SAYS_ANYTHING.isdisjoint(node)]
    # Where parts have addresses, what a reference leads to is not seen here.
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
    """Unless something else speaks of it, or the words are of several types."""
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
    """The ids of nodes that are not to be closed."""
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
    """The subschemas right inside a node, by these words or by any."""
    if not isinstance(node, dict):
        return []
    said = node if words is None else {word: node[word] for word in words & node.keys()}
    return [inner for _, inner in children(Path(), said)]


def _reached(first: Iterable[Any], following: Callable[[Any], list[Any]]) -> set[int]:
    """The ids of these and of all that follow them."""
    found, left = set[int](), list(first)
    while left:
        node = left.pop()
        if id(node) not in found:
            found.add(id(node))
            left += following(node)
    return found


def _is_apart(node: dict[str, Any]) -> bool:
    """Whether its parts may be closed each by itself: they are options, or it is one part, and
    nothing beside them speaks of the value."""
    words = _PARTS & node.keys()
    alone = not (_SAYS_ANYTHING - words | {"required"}) & node.keys()
    return alone and len(words) == 1 and ("allOf" not in words or len(_below(node, words)) == 1)


def _is_enough(node: dict[str, Any]) -> bool:
    """Whether the members that the node names are all that the value must have."""
    names, required = node.get("properties", {}), node.get("required", [])
    first = node.get("prefixItems", node.get("items"))
    num_first = len(first) if isinstance(first, list) else 0
    if not isinstance(names, dict) or not isinstance(required, list) or _SAYS_MORE & node.keys():
        return False
    fewest = (("minProperties", len(required)), ("minItems", num_first))
    if not all(_is_at_most(node.get(word, 0), most) for word, most in fewest):
        return False
    # Parts may say which of the names are needed, no more.
    for part in _below(node, _PARTS):
        if not isinstance(part, dict) or _SAYS_ANYTHING & part.keys():
            return False
        needed = part.get("required", [])
        required = [*required, *(needed if isinstance(needed, list) else [needed])]
    return all(isinstance(name, str) and name in names for name in required)


def _is_at_most(value: Any, most: int) -> bool:
    return isinstance(value, int) and value <= most
