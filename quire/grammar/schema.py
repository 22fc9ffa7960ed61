"""JSON schemas before they are compiled: their size, their subschemas, and what is removed.

A schema is plain JSON. Its subschemas have paths, which errors show as $.properties.x.items,
$.anyOf[1] or $.properties["a b"]. No function here recurses, so no schema is too deep for it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

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
# The formats that JSON Schema itself defines; any other format constrains nothing.
_FORMATS = frozenset(
    {
        *("date-time", "date", "time", "duration", "email", "idn-email", "uuid", "regex"),
        *("hostname", "idn-hostname", "ipv4", "ipv6", "json-pointer", "relative-json-pointer"),
        *("uri", "uri-reference", "uri-template", "iri", "iri-reference"),
    }
)
# Patterns that remove dates and times that do not exist from those llguidance allows: year 0, the
# 29th of February except in every fourth year, and second 60, which few readers accept.
_YEAR = "([0-9][0-9][0-9][1-9]|[0-9][0-9][1-9]0|[0-9][1-9]00|[1-9]000)"
_FOURTH = "(0[48]|[2468][048]|[13579][26])"
_DAY = f"({_YEAR}-(0[13-9]|1|02-[01]|02-2[0-8])|([0-9][0-9]{_FOURTH}|{_FOURTH}00)-02-29)"
_SECOND = "[0-9][0-9]:[0-9][0-9]:[0-5]"
_EXISTING = {"date": f"^{_DAY}", "time": f"^{_SECOND}", "date-time": f"^{_DAY}[^tT]*[tT]{_SECOND}"}
# Keywords of draft 3, and their later names.
_OLD_KEYWORDS = {"divisibleBy": "multipleOf", "extends": "allOf", "disallow": "type"}
# Patterns that compile in milliseconds whatever else the schema says; others need a trial.
_CHEAP_DIGITS = 3
_CHEAP_REPETITION = 800
_MAX_PATH = 300  # characters of a path in an error


def read_schema(schema: object) -> Any:
    """The schema as JSON values that share nothing with what was passed.

    Accepts JSON text, a dict, or a pydantic model class.
    """
    given = _as_given(schema)
    try:
        # Through text in both cases: that refuses all that is not JSON, and makes a copy.
        return json.loads(given if isinstance(given, str) else json.dumps(given, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidGrammar(
            f"the schema does not read as JSON: {error}; pass a dict, JSON text or a pydantic "
            "model class",
            parameter="json",
        ) from None


def schema_text(schema: object) -> str:
    """The schema as text; text is returned as it is, without parsing."""
    given = _as_given(schema)
    return given if isinstance(given, str) else json.dumps(given)


def _as_given(schema: object) -> object:
    """The schema of a pydantic model class; any other value as it is."""
    from_model = getattr(schema, "model_json_schema", None)
    return from_model() if callable(from_model) else schema


def size(value: Any) -> tuple[int, int]:
    """(number of values, nesting depth): {"a": [1, 2]} has 4 values and depth 2."""
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


@dataclass(frozen=True, slots=True, eq=False)
class Path:
    """The place of a subschema: `name` within `above`; the outermost one has no `above`.

    It is a link to the step before, not a text: thousands of subschemas below long names would
    each hold copies of all these names.
    """

    above: Path | None = None
    name: str | int = "$"

    def __truediv__(self, name: str | int) -> Path:
        return Path(self, name)

    @property
    def names(self) -> list[str | int]:
        """The names from the outermost on."""
        found: list[str | int] = []
        here = self
        while here.above is not None:
            found.append(here.name)
            here = here.above
        return found[::-1]

    @property
    def pointer(self) -> str:
        """The path as in a reference: #/$defs/a~1b"""
        steps = (str(name).replace("~", "~0").replace("/", "~1") for name in self.names)
        return "#" + "".join(f"/{quote(step)}" for step in steps)

    def __str__(self) -> str:
        text = "$" + "".join(map(_step, self.names))
        if len(text) <= _MAX_PATH:
            return text
        return f"{text[: _MAX_PATH // 2]} ... {text[-_MAX_PATH // 2 :]}"


def _step(name: str | int) -> str:
    """One step of a path: 1 -> "[1]", "a" -> ".a", "a b" -> '["a b"]'."""
    if isinstance(name, int):
        return f"[{name}]"
    plain = name.replace("_", "").replace("$", "").isalnum() and name.isascii()
    return f".{name}" if plain else f"[{json.dumps(name)}]"


def referred(schema: Any, reference: str) -> Any:
    """The target of a reference within the schema; None if it leads elsewhere."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    here = schema
    for step in reference.split("/")[1:]:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(here, dict) and name in here:
            here = here[name]
        elif isinstance(here, list) and _is_index(name) and int(name) < len(here):
            here = here[int(name)]
        else:
            return None
    return here


def _is_index(name: str) -> bool:
    # str.isdigit accepts characters that int() does not, such as "²".
    return name.isascii() and name.isdecimal() and len(name) < 10


def children(path: Path, schema: Any) -> Iterator[tuple[Path, Any]]:
    """The subschemas directly inside this one; definitions come last."""
    if not isinstance(schema, dict):
        return
    for keyword, value in sorted(schema.items(), key=lambda item: item[0] in _DEFINITIONS):
        below = path / keyword
        if keyword in _MAPS and isinstance(value, dict):
            yield from ((below / name, item) for name, item in value.items())
        elif keyword in _LISTS and isinstance(value, list):
            yield from ((below / i, item) for i, item in enumerate(value))
        elif keyword in _SINGLE and isinstance(value, dict | bool):
            yield below, value


def walk(schema: Any) -> Iterator[tuple[Path, Any]]:
    """Every subschema with its path, the outer before the inner, in the order they stand."""
    stack = [(Path(), schema)]
    while stack:
        here, value = stack.pop()
        yield here, value
        stack.extend(reversed(list(children(here, value))))


def prepare(schema: Any) -> None:
    """Change the schema in place to the form that llguidance should read.

    Removed are "uniqueItems": false and formats that JSON Schema does not define, because they
    constrain nothing; and "$schema", because keywords newer than the version named there would be
    ignored. Patterns are translated to llguidance's dialect. Patterns are added against dates and
    times that do not exist, and excluded bounds are corrected.
    """
    for path, node in list(walk(schema)):
        if not isinstance(node, dict):
            continue
        _check_keywords(path, node)
        node.pop("$schema", None)
        if node.get("uniqueItems") is False:
            del node["uniqueItems"]
        if isinstance(node.get("format"), str) and node["format"] not in _FORMATS:
            del node["format"]
        if isinstance(node.get("pattern"), str):
            node["pattern"] = _pattern(node["pattern"], path / "pattern")
        if isinstance(node.get("patternProperties"), dict):
            below = path / "patternProperties"
            node["patternProperties"] = {
                _pattern(name, below): value for name, value in node["patternProperties"].items()
            }
        _leave_out_whole_bound(node)
        _leave_out_moments(node)


def _check_keywords(path: Path, node: dict[str, Any]) -> None:
    """Refuse keywords of older versions of JSON Schema, which later ones ignore."""
    if isinstance(node.get("required"), bool):
        way_out = "list the names of what is required in 'required' of the object around it"
        raise InvalidGrammar(f"invalid keyword 'required' at {path}: {way_out}", parameter="json")
    for keyword, way_out in _OLD_KEYWORDS.items():
        if keyword in node:
            raise InvalidGrammar(
                f"unsupported keyword {keyword!r} at {path}: write {way_out!r}", parameter="json"
            )


def _leave_out_whole_bound(node: dict[str, Any]) -> None:
    """Between bounds within one whole number, such as above 0 and at most 0.5, llguidance accepts
    the whole number although it is excluded. So move the bound by a billionth."""
    for side, far, way in (("Minimum", "Maximum", 1), ("Maximum", "Minimum", -1)):
        bound: Any = node.get(f"exclusive{side}")
        ends: list[Any] = [node.get(f"exclusive{far}"), node.get(far.lower())]
        if not _is_number(bound) or bound % 1 or bound * way < 0:
            continue
        if any(_is_number(end) and 1e-6 < (end - bound) * way < 1 for end in ends):
            del node[f"exclusive{side}"]
            node[side.lower()] = bound + way * max(1e-9, math.ulp(bound))


def _leave_out_moments(node: dict[str, Any]) -> None:
    existing = _EXISTING.get(str(node.get("format")))
    if existing is not None and "pattern" not in node:
        node["pattern"] = existing
    elif existing is not None and isinstance(node.setdefault("allOf", []), list):
        node["allOf"].append({"pattern": existing})


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 2**53


def _pattern(regex: str, path: Path) -> str:
    try:
        return translated(regex, ascii_classes=True)
    except InvalidGrammar as error:
        raise InvalidGrammar(f"{error.message} ({path})", parameter="json", value=regex) from None


def has_named_and_others(schema: Any) -> bool:
    """Whether some object may have properties beside those that it names."""
    return any(
        node.get("additionalProperties", True) is not False
        and bool(node.get("properties") or node.get("patternProperties") or node.get("required"))
        for node in _objects(schema)
    )


def may_compile_slowly(schema: Any) -> bool:
    """Whether even a small schema may take long to compile: `multipleOf` with many digits in all,
    whose automaton has as many states as the number, or much repetition inside a pattern.

    All objects are checked, also where no subschema belongs: a $ref may lead there.
    """
    digits, repetition = 0, 0
    for node in _objects(schema):
        multiple = node.get("multipleOf")
        if isinstance(multiple, int | float):
            # All are added up: under allOf the numbers of states are multiplied.
            digits += len(repr(multiple).strip("0."))
        named = node.get("patternProperties")
        patterns = [node.get("pattern"), *(named if isinstance(named, dict) else ())]
        texts = [pattern for pattern in patterns if isinstance(pattern, str)]
        repeated = sum(len(p) + 100 * p.count("{") + 20 * p.count("*") for p in texts)
        repetition = max(repetition, repeated)
    return digits > _CHEAP_DIGITS or repetition > _CHEAP_REPETITION


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    stack = [value]
    while stack:
        here = stack.pop()
        if isinstance(here, dict):
            yield here
            stack.extend(here.values())
        elif isinstance(here, list):
            stack.extend(here)
