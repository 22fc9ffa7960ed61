"""Turns llguidance's reasons for refusing a grammar into messages with the keyword and its path.

llguidance names the keyword, not the place. The place is found by looking for a subschema that fits
the message; for a contradiction, by compiling subschemas alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from quire.errors import InvalidGrammar
from quire.grammar.schema import Path, children, walk
from quire.grammar.source import GrammarSource

# Looking for a contradiction compiles one subschema after another, so it stops after so many.
_MAX_ASKED = 200
_MAX_SHOWN = 400
_MAX_READ = 4_000  # characters of llguidance's message, which may repeat the grammar

Ask = Callable[[str], str]


def refusal(message: str, source: GrammarSource, ask: Ask) -> InvalidGrammar:
    """The error for a grammar that llguidance refused with `message`.

    `ask` returns llguidance's error for a grammar, or "".
    """
    first = _IN_LARK.sub("", message[:_MAX_READ].split("\n<", 1)[0].strip())
    if first.startswith("panic:"):
        text = (
            "too many rules or symbols for llguidance"
            if "symbols.len()" in first
            else f"llguidance failed on it ({_line(first)})"
        )
    elif "too big" in first or "schema too large" in first or "too large" in first:
        text = f"it is too large once written out ({_line(first)}); make it smaller"
    elif source.schema is not None:
        text = _of_schema(first, source.schema, ask)
    else:
        text = _edge(first) or _shorten(first, source.kind)
    return InvalidGrammar(f"{source.kind}: {text}", parameter=source.kind)


def _line(message: str) -> str:
    return message.split("\n", 1)[0][:_MAX_SHOWN]


def _shorten(message: str, kind: str) -> str:
    """llguidance's own message: the error and its place, without the picture of the place."""
    lines = [line for line in message.splitlines() if line.strip()]
    wrong = [line.strip() for line in lines if line.startswith("error:")]
    head = (lines[0] if lines else message)[:_MAX_SHOWN]
    # The line above repeats the whole regex.
    return wrong[0].removeprefix("error: ") if wrong and kind == "regex" else head


def _edge(message: str) -> str | None:
    """The message for a word boundary or anchor in a regex that llguidance does not support."""
    said = _EDGE.search(message)
    if said is None:
        return None
    if "Word" in said[1]:
        return r"'\b' and '\B' are not followed; write the characters that stand beside them"
    return "'^' and '$' are followed at the ends of a regex alone; rewrite it without"


def _of_schema(message: str, schema: Any, ask: Ask) -> str:
    for pattern, explain in _EXPLAINED:
        said = re.match(pattern, message, re.DOTALL)
        text = explain(said, schema) if said else None
        if text is not None:
            return text
    if message.startswith("Unsatisfiable schema"):
        path, why = _contradiction(message, schema, ask)
        return f"unsatisfiable schema at {path}: {why.removeprefix('Unsatisfiable schema: ')}"
    return f"{_line(message)} (in the schema at $ or below)"


def _find(schema: Any, fits: Callable[[dict[str, Any]], bool]) -> Path:
    for path, node in walk(schema):
        if isinstance(node, dict) and fits(node):
            return path
    return Path()


def _unsupported(said: re.Match[str], schema: Any) -> str:
    keywords = json.loads(said[1])
    keyword = "if" if "if" in keywords else keywords[0]
    path = _find(schema, lambda node: keyword in node)
    return f"unsupported keyword {keyword!r} at {path}: {_WAYS_OUT.get(keyword, 'remove it')}"


def _format(said: re.Match[str], schema: Any) -> str:
    path = _find(schema, lambda node: node.get("format") == said[1])
    return f"unsupported keyword 'format' at {path}: {said[1]!r} is not known, say it as a pattern"


def _type(said: re.Match[str], schema: Any) -> str:
    def fits(node: dict[str, Any]) -> bool:
        types = node.get("type")
        return said[1] in types if isinstance(types, list) else types == said[1]

    return f"invalid keyword 'type' at {_find(schema, fits)}: there is no type {said[1]!r}"


def _value(said: re.Match[str], schema: Any) -> str:
    wanted, keyword, got = said[1], said[2], said[3].removesuffix("...")
    path = _find(schema, lambda node: keyword in node and _json(node[keyword]).startswith(got))
    kind = "a number" if wanted == "f64" else f"a {wanted.removeprefix('a ')}"
    return f"invalid keyword {keyword!r} at {path}: expected {kind}, got {got[:80]}"


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _shape(said: re.Match[str], schema: Any) -> str | None:
    keyword, wanted = said[1], said[2]
    kind = {"array": list, "object": dict, "string": str}[wanted.split()[0]]
    if keyword == "schema":
        for path, node in walk(schema):
            for name, item in _entries(node):
                if not isinstance(item, dict | bool):
                    return f"invalid schema at {path / name}: expected an object or a boolean"
        return None
    path = _find(schema, lambda node: keyword in node and not isinstance(node[keyword], kind))
    return f"invalid keyword {keyword!r} at {path}: it must be a {wanted}"


def _entries(node: Any) -> list[tuple[str, Any]]:
    """Values that stand where schemas belong, of whatever type."""
    if not isinstance(node, dict):
        return []
    maps = [node.get(keyword) for keyword in ("properties", "patternProperties")]
    found = [pair for item in maps if isinstance(item, dict) for pair in item.items()]
    lists = [node.get(keyword) for keyword in ("anyOf", "oneOf", "allOf", "prefixItems")]
    found += [("anyOf", entry) for item in lists if isinstance(item, list) for entry in item]
    return found + [(k, node[k]) for k in ("items", "additionalProperties") if k in node]


def _reference(said: re.Match[str], schema: Any) -> str:
    path = _find(schema, lambda node: said[1] in str(node.get("$ref", "")))
    return (
        f"invalid keyword '$ref' at {path}: nothing is found at {said[1]!r}; only references "
        "within the schema are followed"
    )


def _circle(said: re.Match[str], schema: Any) -> str:
    path = Path()
    for name in said[1].split("/")[1:]:
        path /= name.replace("~1", "/").replace("~0", "~")
    return (
        f"unsupported keyword '$ref' at {path}: it comes back to itself, with other keywords "
        "beside it; remove those"
    )


def _pattern(said: re.Match[str], schema: Any) -> str:
    regex = said[1].strip()

    def fits(node: dict[str, Any]) -> bool:
        named = node.get("patternProperties")
        return node.get("pattern") == regex or (isinstance(named, dict) and regex in named)

    why = re.search(r"error: (.*)", said[0])
    reason = why[1] if why else "it does not read as a regex"
    return f"unsupported keyword 'pattern' at {_find(schema, fits)}: {reason}"


def _one_of(said: re.Match[str], schema: Any) -> str:
    path = _find(schema, lambda node: "oneOf" in node)
    return (
        f"unsupported keyword 'oneOf' at {path}: its options may overlap, which cannot be "
        "followed token by token; use anyOf, or give each option a property with its own const"
    )


def _properties(said: re.Match[str], schema: Any) -> str:
    path = _find(schema, lambda n: "minProperties" in n or "maxProperties" in n)
    return (
        f"unsupported keyword 'minProperties' or 'maxProperties' at {path}: only where all named "
        "properties are required; list them in 'required', or remove it"
    )


def _disjoint(said: re.Match[str], schema: Any) -> str:
    path = _find(schema, lambda node: "patternProperties" in node)
    return f"unsupported keyword 'patternProperties' at {path}: {_line(said.string)}"


def _multiple(said: re.Match[str], schema: Any) -> str:
    path = _find(schema, lambda node: "multipleOf" in node)
    return f"unsupported keyword 'multipleOf' at {path}: {_line(said.string)}"


def _range(said: re.Match[str], schema: Any) -> str:
    path = _find(schema, lambda n: any(k in n for k in ("minimum", "maximum", *_EXCLUSIVE)))
    return (
        f"unsupported keyword 'minimum' or 'maximum' at {path}: bounds are followed up to 18 "
        "digits, and not where they leave nothing between them; leave out those beyond"
    )


def _edges(said: re.Match[str], schema: Any) -> str:
    path = _find(schema, lambda node: "pattern" in node or "patternProperties" in node)
    return f"unsupported keyword 'pattern' at {path}: {_edge(said.string)}"


def _patterns(said: re.Match[str], schema: Any) -> str:
    path = _find(schema, lambda node: "pattern" in node)
    return f"unsupported keyword 'pattern' at {path}: too many patterns for one text; remove some"


# The prefix of messages about a schema that was embedded in Lark (source.py).
_IN_LARK = re.compile(r"^at \d+\(\d+\): failed to compile JSON schema: ")
_EDGE = re.compile(r"lookarounds not supported yet; (\w+)")
# Other ways to say the same, or nearly so; all other keywords can only be removed.
_WAYS_OUT = {
    "if": "write the cases as anyOf, each with all that it asks for",
    "not": "list in enum, or say as a pattern, what is allowed",
    "uniqueItems": "remove it, and set maxItems to the number of different items",
    "contains": "write items, or prefixItems where one is wanted in its place",
    "propertyNames": "name the properties, or write patternProperties",
    "unevaluatedProperties": "write additionalProperties, with all properties beside it",
    "unevaluatedItems": "write items, with prefixItems beside it",
    "dependentRequired": "write the cases as anyOf, each with its own required",
    "dependentSchemas": "write the cases as anyOf, each with all that it asks for",
    "dependencies": "write the cases as anyOf, each with its own required",
    "$dynamicRef": "write $ref, with the path of what is meant",
    "$recursiveRef": "write $ref, with the path of what is meant",
}


def _too_large(said: re.Match[str], schema: Any) -> str:
    return "it holds a number that is larger than any float; write a smaller one"


_EXCLUSIVE = ("exclusiveMinimum", "exclusiveMaximum")
_EXPLAINED: tuple[tuple[str, Callable[[re.Match[str], Any], str | None]], ...] = (
    (r"Unimplemented keys: (\[.*?\])", _unsupported),
    (r"Unknown format: (.*)", _format),
    (r"Invalid type: (.*)", _type),
    (r"Expected (.+?) for '(.+?)', got (.*)", _value),
    (
        r"(\S+) must be an? (array of strings|string or array of strings|array|object|string)",
        _shape,
    ),
    (r"Pointer '(.*?)' does not exist", _reference),
    (r"Anchor '(.*?)' does not exist", _reference),
    (r"Resource '(.*?)' is not present", _reference),
    (r"circular references with sibling keys are not supported: [^#]*#(\S*)", _circle),
    (r"(?:.*?)regex parse error:\n(.*?)\n.*", _pattern),
    (r"(?:.*?)lookarounds not supported", _edges),
    (r"Unable to determine if regex is empty", _patterns),
    (r"(?:.*?)number out of range", _too_large),
    (r"oneOf constraints are not supported", _one_of),
    (r"min/maxProperties only supported", _properties),
    (r"patternProperty regexes", _disjoint),
    (r"(?:invalid multiple of|Value for 'multipleOf')", _multiple),
    (r"Failed to generate regex for (?:integer|float) range", _range),
)


def _contradiction(message: str, schema: Any, ask: Ask) -> tuple[Path, str]:
    """The innermost subschema that is unsatisfiable by itself, and why.

    Goes down as long as a subschema that the outer one needs is unsatisfiable.
    """
    path, why, node = Path(), message, schema
    shared = {k: schema[k] for k in ("$defs", "definitions") if k in schema}
    asked = 0
    while True:
        for below, child in _needed(path, node):
            if asked == _MAX_ASKED:
                return path, _line(why)
            asked += 1
            answer = ask(json.dumps({"grammars": [{"json_schema": {**shared, **child}}]}))
            if answer.startswith("Unsatisfiable"):
                path, why, node = below, answer, child
                break
        else:
            return path, _line(why)


def _needed(path: Path, node: dict[str, Any]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The subschemas that must be fulfilled: required properties, items of arrays that must have
    some, and everything in anyOf, oneOf and allOf."""
    required = node.get("required")
    names = {n for n in required if isinstance(n, str)} if isinstance(required, list) else set()
    some_items = isinstance(node.get("minItems"), int) and node["minItems"] > 0
    for below, child in children(path, node):
        keyword = below.name if below.above is path or not below.above else below.above.name
        if isinstance(child, dict) and (
            keyword in ("anyOf", "oneOf", "allOf")
            or (keyword in ("items", "prefixItems") and some_items)
            or (keyword == "properties" and below.name in names)
        ):
            yield below, child
