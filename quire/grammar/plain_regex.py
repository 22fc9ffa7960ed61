r"""Reads regexes, in the form that llguidance gets (regex.py), into parts, if an automaton is
enough to follow them.

Supported are characters, classes, `.`, `\s`, groups, `|`, quantifiers, and anchors at the ends;
with `tables` also Unicode classes, which take longer to read. For other regexes (flags, lazy
quantifiers) `read` returns None, and llguidance follows them.
"""

from __future__ import annotations

from quire.grammar.parts import (
    ANY,
    NOTHING,
    AnyOf,
    InOrder,
    OneOf,
    Part,
    Ranges,
    Repeated,
    joined,
    others,
    sign,
)
from quire.grammar.unicode_classes import ranges_of

_SPECIAL = frozenset("\\.[](){}*+?|^$")
_ESCAPED = {"n": 0x0A, "t": 0x09, "r": 0x0D, "f": 0x0C, "v": 0x0B, "a": 0x07}
_HEX = {"x": 2, "u": 4, "U": 8}
# White space in Unicode, a set that does not grow.
_SPACES = [(0x09, 0x0D), (0x2000, 0x200A), (0x2028, 0x2029)]
_SPACES += [(one, one) for one in (0x20, 0x85, 0xA0, 0x1680, 0x202F, 0x205F, 0x3000)]
_MAX_COUNT = 2000
_MAX_DEPTH = 50


class _NotPlainError(Exception):
    """Only llguidance can read it."""


def read(regex: str, *, tables: bool = False) -> Part | None:
    """The parts of a plain regex that must match a whole text; None for any other regex."""
    found = _alternatives(regex, tables)
    return None if found is None else _either([part for _, part, _ in found])


def read_search(regex: str) -> Part | None:
    """The same for a regex that must match only a piece of the text, as patterns of schemas do."""
    found = _alternatives(regex, tables=True)
    if found is None:
        return None
    rest = Repeated(ANY, 0, None)
    return _either(
        [
            InOrder((NOTHING if begins else rest, part, NOTHING if ends else rest))
            for begins, part, ends in found
        ]
    )


def _alternatives(regex: str, tables: bool) -> list[tuple[bool, Part, bool]] | None:
    try:
        return _Reading(regex, tables).whole()
    except _NotPlainError:
        return None


def _either(parts: list[Part]) -> Part:
    return parts[0] if len(parts) == 1 else AnyOf(tuple(parts))


class _Reading:
    """Reads a regex in one pass, left to right."""

    def __init__(self, regex: str, tables: bool) -> None:
        self._regex, self._at, self._depth, self._tables = regex, 0, 0, tables

    def whole(self) -> list[tuple[bool, Part, bool]]:
        """(anchored at the beginning, part, anchored at the end) of each alternative."""
        found = [self._anchored()]
        while self._skip("|"):
            found.append(self._anchored())
        if self._at < len(self._regex):
            raise _NotPlainError
        return found

    def _anchored(self) -> tuple[bool, Part, bool]:
        begins = self._skip("^")
        return begins, self._sequence(), self._skip("$")

    def _peek(self) -> str:
        return self._regex[self._at : self._at + 1]

    def _take(self) -> str:
        char = self._peek()
        if not char:
            raise _NotPlainError
        self._at += 1
        return char

    def _skip(self, text: str) -> bool:
        found = self._regex.startswith(text, self._at)
        self._at += len(text) if found else 0
        return found

    def _choices(self) -> Part:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _NotPlainError
        found = [self._sequence()]
        while self._skip("|"):
            found.append(self._sequence())
        self._depth -= 1
        return _either(found)

    def _sequence(self) -> Part:
        parts: list[Part] = []
        while self._peek() not in ("", "|", ")", "$"):
            parts.append(self._quantified(self._atom()))
        return parts[0] if len(parts) == 1 else InOrder(tuple(parts))

    def _atom(self) -> Part:
        char = self._take()
        if char == "(":
            return self._group()
        if char == "[":
            return OneOf(self._class_or_tables())
        if char == ".":
            return OneOf(others(((10, 10),)))
        if char == "\\":
            return OneOf(self._escaped())
        if char in _SPECIAL:
            raise _NotPlainError
        return sign(char)

    def _group(self) -> Part:
        if self._skip("?P<") or self._skip("?<"):
            while (char := self._take()) != ">":
                if not char.isalnum() and char != "_":  # look-behind, too
                    raise _NotPlainError
        elif not self._skip("?:") and self._peek() == "?":
            raise _NotPlainError
        part = self._choices()
        if self._take() != ")":
            raise _NotPlainError
        return part

    def _escaped(self) -> Ranges:
        char = self._take()
        if char == "s":
            return joined(_SPACES)
        if char in "pPD":
            return self._property(char)
        if char in _HEX:
            code = self._code(_HEX[char])
        elif char.isalnum() or not char.isascii() or char == "_":
            if char not in _ESCAPED:
                raise _NotPlainError
            code = _ESCAPED[char]
        else:
            code = ord(char)
        return ((code, code),)

    def _code(self, num_digits: int) -> int:
        """The code of a character: 41 or {41}."""
        braced = self._skip("{")
        end = self._regex.find("}", self._at) if braced else self._at + num_digits
        digits = self._regex[self._at : max(end, self._at)]
        self._at = end + braced
        try:
            return ord(chr(int(digits, 16)).encode().decode())
        except (ValueError, OverflowError):
            raise _NotPlainError from None

    def _property(self, char: str) -> Ranges:
        r"""\p{L}, \pL, \P{L}; \D, which is \P{Nd}."""
        start = self._at
        if char != "D" and self._take() == "{":
            self._at = self._regex.find("}", self._at) + 1 or len(self._regex)
        found = self._by_tables(r"\d" if char == "D" else r"\p" + self._regex[start : self._at])
        return found if char == "p" else others(found)

    def _by_tables(self, regex: str) -> Ranges:
        found = ranges_of(regex) if self._tables else None
        if not found:
            raise _NotPlainError
        return found

    def _class_or_tables(self) -> Ranges:
        """A class. One with && is looked up as a whole, because its parts are far larger."""
        start = self._at
        try:
            return self._class()
        except _NotPlainError:
            self._at, depth = start, 1
            while depth:
                char = self._take()
                depth += (char == "[") - (char == "]")
                self._at += char == "\\"
            return self._by_tables(self._regex[start - 1 : self._at])

    def _class(self) -> Ranges:
        negated = self._skip("^")
        found: list[tuple[int, int]] = []
        while (char := self._take()) != "]" or not found:
            if char == "[":
                if self._peek() == ":":
                    raise _NotPlainError
                one = self._class_or_tables()
            else:
                if char in "]&~^" or (char == "-" and self._peek() == "-"):
                    raise _NotPlainError
                one = self._escaped() if char == "\\" else ((ord(char), ord(char)),)
            if self._peek() == "-" and self._regex[self._at + 1 : self._at + 2] not in ("]", ""):
                one = self._range(char, one)
            found += one
        ranges = joined(found)
        return others(ranges) if negated else ranges

    def _range(self, char: str, one: Ranges) -> Ranges:
        """The range from a character to the one after the dash."""
        self._at += 1
        last = self._take()
        end = self._escaped() if last == "\\" else ((ord(last), ord(last)),)
        is_range = len(one) == len(end) == 1 and one[0][0] == one[0][1] and end[0][0] == end[0][1]
        if not is_range or last in "[&~-" or char in "[-" or end[0][0] < one[0][0]:
            raise _NotPlainError
        return ((one[0][0], end[0][0]),)

    def _quantified(self, part: Part) -> Part:
        char = self._peek()
        if not char or char not in "*+?{":
            return part
        self._at += 1
        least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(char, (0, 0))
        if char == "{":
            least, most = self._counts()
        if self._peek() and self._peek() in "*+?{":  # lazy, possessive, or twice
            raise _NotPlainError
        return Repeated(part, least, most)

    def _counts(self) -> tuple[int, int | None]:
        end = self._regex.find("}", self._at)
        low, comma, high = self._regex[self._at : max(end, self._at)].partition(",")
        self._at = end + 1
        numbers = [number for number in (low, high) if number]
        if end < 0 or not numbers or not all(n.isascii() and n.isdigit() for n in numbers):
            raise _NotPlainError
        least, most = int(low or 0), int(high) if high else None
        most = most if comma else least
        if max(least, most or 0) > _MAX_COUNT or (most is not None and most < least):
            raise _NotPlainError
        return least, most
