"""JSON schemas before they are compiled: how large, what they say, what is left out.

A schema is plain JSON. Its subschemas have paths as errors show them: $.properties.x.items,
$.anyOf[1], $.properties["a b"]. No function here follows a reference or recurses, so no schema
is too deep for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from quire.errors import InvalidGrammar
from quire.grammar.regex import translated

_DEFINITIONS = frozenset({"$defs", "definitions"})
_MAPS = frozenset({"properties", "patternProperties", "dependentSchemas"}) | _DEFINITIONS
_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems", "items"})
_SINGLE = frozenset(
    {
        *("items", "additionalProperties", "additionalItems", "contains", "propertyNames"),
        *("not", "if", "then", "else", "unevaluatedItems", "unevaluatedProperties"),
    }
)
# The formats that JSON Schema itself defines; any other one is a note that constrains nothing.
_FORMATS = frozenset(
    {
        *("date-time", "date", "time", "duration", "email", "idn-email", "uuid", "regex"),
        *("hostname", "idn-hostname", "ipv4", "ipv6", "json-pointer", "relative-json-pointer"),
        *("uri", "uri-reference", "uri-template", "iri", "iri-reference"),
    }
)


def read_schema(schema: object) -> Any:
    """The schema as JSON values that share nothing with what was passed.

    Takes JSON text, a dict, or a pydantic model class.
    """
    from_model = getattr(schema, "model_json_schema", None)
    given = from_model() if callable(from_model) else schema
    try:
        # Through text in both cases: it refuses what is not JSON, and makes a copy.
        return json.loads(given if isinstance(given, str) else json.dumps(given, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidGrammar(
            f"the schema does not read as JSON: {error}; pass a dict, JSON text or a pydantic "
            "model class",
            parameter="json",
        ) from None


def schema_text(schema: object) -> str:
    """One spelling per content, without reading text that is text already."""
    from_model = getattr(schema, "model_json_schema", None)
    given = from_model() if callable(from_model) else schema
    return given if isinstance(given, str) else json.dumps(given)


def size(value: Any) -> tuple[int, int]:
    """(number of values, brackets within brackets): {"a": [1, 2]} has 4 values, 2 deep."""
    num_values, deepest = 0, 0
    stack = [(value, 0)]
    while stack:
        here, depth = stack.pop()
        num_values += 1
        if isinstance(here, dict | list):
            deepest = max(deepest, depth + 1)
            inside = here.values() if isinstance(here, dict) else here
            stack.extend((item, depth + 1) for item in inside)
    return num_values, deepest


def step(path: str, name: str | int) -> str:
    """The path one step on: ("$.anyOf", 1) -> "$.anyOf[1]", ("$", "a b") -> '$["a b"]'."""
    if isinstance(name, int):
        return f"{path}[{name}]"
    plain = name.replace("_", "").replace("$", "").isalnum() and name.isascii()
    return f"{path}.{name}" if plain else f"{path}[{json.dumps(name)}]"


def children(path: str, schema: Any) -> Iterator[tuple[str, Any]]:
    """The subschemas right inside this one; definitions come last."""
    if not isinstance(schema, dict):
        return
    for keyword, value in sorted(schema.items(), key=lambda item: item[0] in _DEFINITIONS):
        if keyword in _MAPS and isinstance(value, dict):
            below = step(path, keyword)
            yield from ((step(below, name), item) for name, item in value.items())
        elif keyword in _LISTS and isinstance(value, list):
            below = step(path, keyword)
            yield from ((step(below, i), item) for i, item in enumerate(value))
        elif keyword in _SINGLE and isinstance(value, dict | bool):
            yield step(path, keyword), value


def walk(schema: Any, path: str = "$") -> Iterator[tuple[str, Any]]:
    """Every subschema with its path, the outer before the inner, in the order they stand."""
    stack = [(path, schema)]
    while stack:
        here, value = stack.pop()
        yield here, value
        stack.extend(reversed(list(children(here, value))))


def prepare(schema: Any, *, closed_objects: bool = False) -> None:
    """Change the schema in place to what llguidance is to read.

    Left out: "uniqueItems": false, and formats that JSON Schema does not define; neither
    constrains anything. Patterns become llguidance's. With `closed_objects`, an object that
    names properties and says nothing of others gets none.
    """
    for path, node in list(walk(schema)):
        if not isinstance(node, dict):
            continue
        if node.get("uniqueItems") is False:
            del node["uniqueItems"]
        if isinstance(node.get("format"), str) and node["format"] not in _FORMATS:
            del node["format"]
        if isinstance(node.get("pattern"), str):
            node["pattern"] = _pattern(node["pattern"], step(path, "pattern"))
        if isinstance(node.get("patternProperties"), dict):
            below = step(path, "patternProperties")
            node["patternProperties"] = {
                _pattern(name, below): value for name, value in node["patternProperties"].items()
            }
        names_some = isinstance(node.get("properties") or node.get("patternProperties"), dict)
        if closed_objects and names_some and "unevaluatedProperties" not in node:
            node.setdefault("additionalProperties", False)


def _pattern(regex: str, path: str) -> str:
    try:
        return translated(regex, ascii_classes=True)
    except InvalidGrammar as error:
        raise InvalidGrammar(f"{error.message} ({path})", parameter="json", value=regex) from None


def is_dear(schema: Any) -> bool:
    """Whether a small schema may still take long to compile: a `multipleOf` of many digits, whose
    automaton has that many states, or much repetition inside a pattern."""
    for _, node in walk(schema):
        if not isinstance(node, dict):
            continue
        multiple = node.get("multipleOf")
        if isinstance(multiple, int | float) and len(repr(multiple).strip("0.")) > 3:
            return True
        patterns = [node["pattern"]] if isinstance(node.get("pattern"), str) else []
        patterns += list(node.get("patternProperties") or ())
        if sum(len(p) + 100 * p.count("{") + 20 * p.count("*") for p in patterns) > 800:
            return True
    return False
