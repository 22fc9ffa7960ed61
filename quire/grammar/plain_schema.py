"""Reads JSON schemas into parts, as plain regexes are, if an automaton can follow their texts.

Supported are objects that name their properties or give the type of all others, arrays, strings,
numbers, choices, and references that do not lead back to themselves. For other schemas, and for
"any JSON", `read_schema` returns None, and llguidance follows them. The texts are those that
llguidance accepts: properties in their order, space between any two signs but not before the first
or after the last, and one spelling per character.
"""

from __future__ import annotations

import json
from typing import Any

from quire.grammar.parts import (
    ANY,
    NOTHING,
    AnyOf,
    Both,
    InOrder,
    Multiple,
    Part,
    Repeated,
    Without,
    quoted,
    sign,
    spelled,
)
from quire.grammar.plain_numbers import bounds_of, number, whole_number
from quire.grammar.plain_regex import read, read_search
from quire.grammar.plain_text import read_text
from quire.grammar.schema import referred

_MOST_NESTED, _MOST_VALUES = 16, 1000  # values are counted again wherever a reference repeats them
_LARGEST_DIVISOR = 1000  # of whole numbers; it needs as many states
# Keywords that constrain nothing, beside "x-...".
_NOTES = frozenset(
    {
        *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
        *("$comment", "$anchor", "$defs", "definitions", "contentEncoding", "contentMediaType"),
        *("contentSchema", "discriminator", "example", "nullable", "enumNames"),
    }
)
_OF_TYPE = {
    "object": ("properties", "required", "additionalProperties", "patternProperties")
    + ("minProperties", "maxProperties"),
    "array": ("items", "prefixItems", "additionalItems", "minItems", "maxItems"),
    "string": ("minLength", "maxLength", "pattern", "format", "allOf"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
_ALL_OF_TYPES = frozenset({"type"}).union(*_OF_TYPE.values())


class _NotPlainError(Exception):
    """Only llguidance can read it."""


def read_schema(schema: Any, whitespace: str | None, *, by_number: bool = True) -> Part | None:
    """The parts of a plain schema; None for any other. `whitespace` is the regex of what may stand
    between signs, None for nothing; `by_number`: see `quoted`."""
    between = None if whitespace is None else read(whitespace)
    if whitespace is not None and between is None:
        return None
    try:
        return _Reading(schema, between, by_number).value(schema, 0)
    except _NotPlainError:
        return None


def _plain(part: Part | None) -> Part:
    if part is None:
        raise _NotPlainError
    return part


def _regex(text: str | None) -> Part:
    return _plain(None if text is None else read(text))


class _Reading:
    def __init__(self, root: Any, between: Part | None, by_number: bool) -> None:
        self._root, self._num_values, self._by_number = root, 0, by_number
        self._space = NOTHING if between is None else Repeated(between, 0, 1)
        self._comma = InOrder((self._space, sign(","), self._space))

    def value(self, schema: Any, depth: int) -> Part:
        self._num_values += 1
        too_much = depth > _MOST_NESTED or self._num_values > _MOST_VALUES
        if not isinstance(schema, dict) or too_much or (depth and "$id" in schema):
            raise _NotPlainError
        said = {
            key: value
            for key, value in schema.items()
            if key not in _NOTES and not key.startswith("x-") and key != "$id"
        }
        listed = said.keys() & {"enum", "const"}
        if len(listed) == 1 and said.keys() <= {*listed, "type"}:
            options = said["enum"] if "enum" in said else [said["const"]]
            return self._literals(options, said.get("type"), depth)
        if len(said) == 1:
            ((key, one),) = said.items()
            if key == "$ref":
                return self.value(referred(self._root, str(one)), depth + 1)
            if key in ("anyOf", "oneOf") or (key == "allOf" and len(one) == 1):
                return AnyOf(tuple(self.value(option, depth + 1) for option in one))
        kinds = said.get("type")
        more = said.get("allOf", [])  # further patterns (schema.py)
        is_plain = all(isinstance(one, dict) and one.keys() == {"pattern"} for one in more)
        if said.keys() - _ALL_OF_TYPES or not kinds or not is_plain:
            raise _NotPlainError
        if isinstance(kinds, str):
            return self._typed(kinds, said, depth)
        return AnyOf(tuple(self._typed(kind, said, depth) for kind in kinds))

    def _typed(self, kind: Any, said: dict[str, Any], depth: int) -> Part:
        """A value of this type; keywords of other types do not matter."""
        if kind == "object":
            return self._object(said, depth)
        if kind == "array":
            return self._array(said, depth)
        if kind == "string":
            return _plain(read_text(said, by_number=self._by_number))
        if kind in ("integer", "number"):
            return self._number(kind, said)
        if kind not in ("boolean", "null"):
            raise _NotPlainError
        return _regex("true|false" if kind == "boolean" else "null")

    def _number(self, kind: str, said: dict[str, Any]) -> Part:
        bounds, of = bounds_of(said), said.get("multipleOf", 1)
        if bounds is None:
            raise _NotPlainError
        whole = _regex(whole_number(bounds) if kind == "integer" else number(bounds))
        if "multipleOf" not in said:
            return whole
        if kind == "number" or type(of) is not int or not 0 < of <= _LARGEST_DIVISOR:
            raise _NotPlainError
        return Both(whole, InOrder((Repeated(sign("-"), 0, 1), Multiple(of))))

    def _literals(self, options: Any, kinds: Any, depth: int) -> Part:
        """The listed values that have the type that is asked for."""
        allowed = None if kinds is None else {kinds} if isinstance(kinds, str) else set(kinds)
        if (
            allowed is not None
            and allowed & {"object", "array", "integer"}
            and not _are_texts(options)
        ):
            raise _NotPlainError
        found = [one for one in options if allowed is None or _type_of(one) & allowed]
        if not found:
            raise _NotPlainError
        return AnyOf(tuple(self._literal(one, depth) for one in found))

    def _literal(self, value: Any, depth: int) -> Part:
        self._num_values += 1
        if depth > _MOST_NESTED or self._num_values > _MOST_VALUES:
            raise _NotPlainError
        if isinstance(value, str):
            text = quoted(spelled(value), by_number=self._by_number)
            return InOrder((sign('"'), text, sign('"')))
        if value is None or isinstance(value, bool):
            return spelled(json.dumps(value))
        if isinstance(value, list):
            items = [self._literal(one, depth + 1) for one in value]
            return self._listed(items, None, len(items), len(items))
        if isinstance(value, dict):
            items = [
                self._named(name, self._literal(one, depth + 1)) for name, one in value.items()
            ]
            return self._in_braces(items, [True] * len(items))
        bounds = bounds_of({"minimum": value, "maximum": value})
        if bounds is None:
            raise _NotPlainError
        return _regex(whole_number(bounds) if isinstance(value, int) else number(bounds))

    def _named(self, name: str, value: Part) -> Part:
        # As llguidance spells names: controls by number, if they have no letter.
        return self._pair(spelled(json.dumps(name, ensure_ascii=False)), value)

    def _pair(self, name: Part, value: Part) -> Part:
        return InOrder((name, self._space, sign(":"), self._space, value))

    def _object(self, said: dict[str, Any], depth: int) -> Part:
        named, required = said.get("properties", {}), said.get("required", [])
        if not all(name in named for name in required):
            raise _NotPlainError
        items = [self._named(name, self.value(one, depth + 1)) for name, one in named.items()]
        needed = [name in required for name in named]
        least, most = said.get("minProperties", 0), said.get("maxProperties")
        if named and (least or most is not None):
            raise _NotPlainError
        extra = self._others(said, named, depth)
        if extra is not None and most != 0:
            again = InOrder((self._comma, extra))
            rest = Repeated(again, max(least - 1, 0), None if most is None else most - 1)
            items.append(InOrder((extra, rest)))
            needed.append(least > 0)
        elif least:
            raise _NotPlainError
        return self._in_braces(items, needed)

    def _others(self, said: dict[str, Any], named: dict[str, Any], depth: int) -> Part | None:
        """A property that is not named; None if there can be none."""
        patterns, extra = said.get("patternProperties", {}), said.get("additionalProperties", True)
        if patterns:
            if named or extra is not False:
                raise _NotPlainError
            pairs = [
                self._pair(self._name(read_search(pattern)), self.value(one, depth + 1))
                for pattern, one in patterns.items()
            ]
            return AnyOf(tuple(pairs))
        if extra is False:
            return None
        name = self._name(Repeated(ANY, 0, None))
        if named:
            if self._by_number:  # then any character could be written by number
                raise _NotPlainError
            taken = tuple(spelled(json.dumps(one, ensure_ascii=False)) for one in named)
            name = Without(name, AnyOf(taken))
        return self._pair(name, self.value(extra, depth + 1))

    def _name(self, part: Part | None) -> Part:
        return InOrder((sign('"'), quoted(_plain(part), by_number=self._by_number), sign('"')))

    def _in_braces(self, items: list[Part], needed: list[bool]) -> Part:
        """An object of these items in order; items that are not needed may be left out."""
        # From the last item on: what may follow an item, and what may come first.
        later: Part = NOTHING
        firsts: list[Part] = [] if any(needed) else [NOTHING]
        for i in range(len(items) - 1, -1, -1):
            if not any(needed[:i]):
                firsts.append(InOrder((items[i], later, self._space)))
            following = InOrder((self._comma, items[i]))
            later = InOrder((following if needed[i] else Repeated(following, 0, 1), later))
        return InOrder((sign("{"), self._space, AnyOf(tuple(firsts)), sign("}")))

    def _array(self, said: dict[str, Any], depth: int) -> Part:
        least, most = said.get("minItems", 0), said.get("maxItems")
        first, rest = said.get("prefixItems", []), said.get("items", True)
        if isinstance(rest, list):  # the form of older versions
            first, rest = rest, said.get("additionalItems", True)
        elif "additionalItems" in said:
            raise _NotPlainError
        items = [self.value(one, depth + 1) for one in first]
        if most is not None and most <= len(items):
            rest = False
        return self._listed(
            items, None if rest is False else self.value(rest, depth + 1), least, most
        )

    def _listed(self, first: list[Part], rest: Part | None, least: int, most: int | None) -> Part:
        """An array of the items `first`, then any number of `rest`."""
        if most is not None and most < least:
            raise _NotPlainError
        first = first[:most]
        later: Part = NOTHING
        if rest is not None:
            count = max(len(first), 1)  # items that come before
            following = InOrder((self._comma, rest))
            limit = None if most is None else max(most - count, 0)
            later = Repeated(following, max(least - count, 0), limit)
            first = first or [rest]
        elif least > len(first):
            raise _NotPlainError
        for i in range(len(first) - 1, 0, -1):
            following = InOrder((self._comma, first[i], later))
            later = following if i < least else Repeated(following, 0, 1)
        some = [InOrder((first[0], later, self._space))] if first and most != 0 else []
        empty = [] if least else [NOTHING]
        return InOrder((sign("["), self._space, AnyOf((*some, *empty)), sign("]")))


def _are_texts(values: list[Any]) -> bool:
    """Whether all are strings, whole numbers, booleans or null, whose types are clear."""
    return all(type(value) in (str, int, bool, type(None)) for value in values)


def _type_of(value: Any) -> set[str]:
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int):
        return {"integer", "number"}
    names = {float: "number", str: "string", list: "array", dict: "object", type(None): "null"}
    return {names[type(value)]}
