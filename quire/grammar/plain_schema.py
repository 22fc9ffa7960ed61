"""JSON schemas whose texts an automaton can follow, read into parts as plain regexes are.

Objects that name all their properties, arrays, strings, whole numbers, choices, and references that
do not lead back to themselves. Whatever else a schema may say is left to llguidance: `read_schema`
then gives None. Texts are those that llguidance takes: properties in their order, space between any
two signs but neither before the first nor after the last, and a character spelled in one way.
"""

from __future__ import annotations

import json
from typing import Any

from quire.grammar.plain_regex import AnyOf, InOrder, OneOf, Part, Repeated, read, spelled

_NOTES = frozenset({"title", "description", "default", "examples", "$schema", "$id", "$comment"})
_MOST_NESTED, _MOST_VALUES = 16, 1000  # the second with all that references repeat
_MOST_LENGTH = 200
_ESCAPES = r'\\(["\\bfnrt]|u00([01][0-9a-fA-F]|7[fF]))'
_PLAIN = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7E), (0x80, 0xD7FF), (0xE000, 0x10FFFF))
_WHOLE, _FRACTION = "-?(0|[1-9][0-9]*)", r"(\.[0-9]+)?([eE][+-]?[0-9]+)?"


class _NotPlainError(Exception):
    """It is llguidance's to read."""


def read_schema(schema: Any, whitespace: str | None) -> Part | None:
    """The parts of a plain schema, None for any other. `whitespace` is the regex of what may stand
    between signs, None for nothing."""
    between = None if whitespace is None else read(whitespace)
    if whitespace is not None and between is None:
        return None
    try:
        return _Reading(schema, between).value(schema, 0)
    except _NotPlainError:
        return None


def _regex(text: str) -> Part:
    part = read(text)
    if part is None:
        raise _NotPlainError
    return part


class _Reading:
    def __init__(self, root: Any, between: Part | None) -> None:
        self._root, self._num_values = root, 0
        self._space = InOrder(()) if between is None else Repeated(between, 0, 1)
        self._character = AnyOf((OneOf(_PLAIN), _regex(_ESCAPES)))

    def value(self, schema: Any, depth: int) -> Part:
        self._num_values += 1
        too_much = depth > _MOST_NESTED or self._num_values > _MOST_VALUES
        if not isinstance(schema, dict) or too_much:
            raise _NotPlainError
        said = {key: value for key, value in schema.items() if key not in _NOTES}
        said.pop("x-guidance", None)
        if depth == 0:
            for key in ("$defs", "definitions"):
                said.pop(key, None)
        if "$ref" in said:
            return self.value(self._referred(said), depth + 1)
        for key, options in (("anyOf", said.get("anyOf")), ("enum", said.get("enum"))):
            if options is not None:
                if len(said) > 1 + (key == "enum" and "type" in said) or not options:
                    raise _NotPlainError
                return self._any(key, options, said.get("type"), depth)
        if "const" in said:
            return self._any("enum", [said.pop("const")], said.pop("type", None), depth, left=said)
        kind = said.pop("type", None)
        if not isinstance(kind, str):
            raise _NotPlainError
        made = self._typed(kind, said, depth)
        if said:  # what was not asked about
            raise _NotPlainError
        return made

    def _referred(self, said: dict[str, Any]) -> Any:
        reference = said["$ref"]
        group, _, name = str(reference).removeprefix("#/").partition("/")
        found = self._root.get(group)
        is_known = isinstance(found, dict) and name in found and "/" not in name
        if len(said) > 1 or group not in ("$defs", "definitions") or not is_known:
            raise _NotPlainError
        return found[name]

    def _any(
        self, key: str, options: Any, kind: Any, depth: int, left: dict[str, Any] | None = None
    ) -> Part:
        if left or not isinstance(options, list):
            raise _NotPlainError
        if key == "anyOf":
            return AnyOf(tuple(self.value(one, depth + 1) for one in options))
        return AnyOf(tuple(_literal(one, kind) for one in options))

    def _typed(self, kind: str, said: dict[str, Any], depth: int) -> Part:
        """What a value of this type may be; takes what it asks about from `said`."""
        if kind == "object":
            return self._object(said, depth)
        if kind == "array":
            return self._array(said, depth)
        if kind == "string":
            least, most = _counts(said, "minLength", "maxLength")
            if max(least, most or 0) > _MOST_LENGTH:
                raise _NotPlainError
            return InOrder((_sign('"'), Repeated(self._character, least, most), _sign('"')))
        if kind == "integer":
            return _whole_number(said.pop("minimum", None), said.pop("maximum", None))
        plain = {"number": _WHOLE + _FRACTION, "boolean": "true|false", "null": "null"}
        if kind not in plain:
            raise _NotPlainError
        return _regex(plain[kind])

    def _object(self, said: dict[str, Any], depth: int) -> Part:
        named, required = said.pop("properties", {}), said.pop("required", [])
        is_plain = isinstance(named, dict) and isinstance(required, list)
        if said.pop("additionalProperties", True) is not False or not is_plain:
            raise _NotPlainError
        if not all(isinstance(name, str) and name in named for name in required):
            raise _NotPlainError
        items = [
            self._spaced(_literal(name, "string"), _sign(":"), self.value(value, depth + 1))
            for name, value in named.items()
        ]
        needed = [name in required for name in named]
        # From the last on: what may follow others, and what may come first.
        later: Part = InOrder(())
        firsts: list[Part] = [] if any(needed) else [InOrder(())]
        for i in range(len(items) - 1, -1, -1):
            if not any(needed[:i]):
                firsts.append(InOrder((items[i], later, self._space)))
            following = InOrder((self._space, _sign(","), self._space, items[i]))
            later = InOrder((following if needed[i] else Repeated(following, 0, 1), later))
        return InOrder((_sign("{"), self._space, AnyOf(tuple(firsts)), _sign("}")))

    def _array(self, said: dict[str, Any], depth: int) -> Part:
        least, most = _counts(said, "minItems", "maxItems")
        item = self.value(said.pop("items", None), depth + 1)
        following = InOrder((self._space, _sign(","), self._space, item))
        rest = Repeated(following, max(least - 1, 0), None if most is None else max(most - 1, 0))
        some: list[Part] = [] if most == 0 else [InOrder((item, rest, self._space))]
        if least == 0:
            some.append(InOrder(()))
        if not some:
            raise _NotPlainError
        return InOrder((_sign("["), self._space, AnyOf(tuple(some)), _sign("]")))

    def _spaced(self, *parts: Part) -> Part:
        joined: list[Part] = []
        for part in parts:
            joined += [part, self._space]
        return InOrder(tuple(joined[:-1]))


def _sign(char: str) -> Part:
    return OneOf(((ord(char), ord(char)),))


def _literal(value: Any, kind: Any) -> Part:
    """A value of an enumeration, if it can be spelled in one way only."""
    is_text = isinstance(value, str) and kind in (None, "string")
    if is_text and value.isascii() and value.isprintable() and not set(value) & set('"\\'):
        return spelled([json.dumps(value)])
    if kind is None and (value is None or isinstance(value, bool)):
        return spelled([json.dumps(value)])
    raise _NotPlainError


def _counts(said: dict[str, Any], least: str, most: str) -> tuple[int, int | None]:
    low, high = said.pop(least, 0), said.pop(most, None)
    if not all(one is None or (type(one) is int and one >= 0) for one in (low, high)):
        raise _NotPlainError
    if high is not None and high < low:
        raise _NotPlainError
    return low, high


def _whole_number(low: Any, high: Any) -> Part:
    """Whole numbers from `low` to `high`, neither or both given, and not below zero."""
    if low is None and high is None:
        return _regex(_WHOLE)
    if type(low) is not int or (high is not None and type(high) is not int) or low < 0:
        raise _NotPlainError
    if high is None:
        if low > 1:
            raise _NotPlainError
        return _regex("[1-9][0-9]*" if low else "0|[1-9][0-9]*")
    if not low <= high < 10**9:
        raise _NotPlainError
    return AnyOf(tuple(_regex(one) for one in _between(low, high)))


def _between(low: int, high: int) -> list[str]:
    """Regexes of all numbers from one to the other: 7 .. 120 -> 7-9, 10-99, 100-119, 120."""
    found: list[str] = []
    while low <= high:
        # As many zeros at the end as fit: all numbers with that beginning are taken at once.
        free = 0
        while low % 10 ** (free + 1) == 0 and low and low + 10 ** (free + 1) - 1 <= high:
            free += 1
        size = 10**free
        digit = low // size % 10
        last = min(9, digit + (high - low + 1) // size - 1)
        begin = str(low // size)[:-1]
        found.append(f"{begin}[{digit}-{last}]" + f"[0-9]{{{free}}}" * bool(free))
        low += (last - digit + 1) * size
    return found
