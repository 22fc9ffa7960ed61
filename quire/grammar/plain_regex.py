r"""Regexes that say the same in every dialect, read into parts: what is read here needs no more
than an automaton to be followed.

Characters, classes, `.`, `\d`, groups, `|` and the quantifiers. Whatever else a regex may hold
(anchors, flags, lazy quantifiers, classes of Unicode, look-around) is left to llguidance: `read`
then gives None.
"""

from __future__ import annotations

from dataclasses import dataclass

_MAX_UNICODE = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)
_SPECIAL = frozenset("\\.[](){}*+?|^$")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r"}
_MAX_COUNT = 2000
_MAX_DEPTH = 50

Ranges = tuple[tuple[int, int], ...]  # of code points, in order, both ends included


@dataclass(frozen=True, slots=True)
class OneOf:
    """One character of these."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class InOrder:
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Repeated:
    """`most` None: without end."""

    part: Part
    least: int
    most: int | None


Part = OneOf | InOrder | AnyOf | Repeated


class _NotPlainError(Exception):
    """It is llguidance's to read."""


def read(regex: str) -> Part | None:
    """The parts of a plain regex, None for any other."""
    try:
        return _Reading(regex).whole()
    except _NotPlainError:
        return None


def spelled(texts: list[str]) -> Part:
    """Exactly one of these texts."""
    return AnyOf(tuple(InOrder(tuple(map(_character, text))) for text in texts))


def _character(char: str) -> OneOf:
    return OneOf(((ord(char), ord(char)),))


class _Reading:
    """One pass over a regex, left to right."""

    def __init__(self, regex: str) -> None:
        self._regex, self._at, self._depth = regex, 0, 0

    def whole(self) -> Part:
        part = self._choices()
        if self._at < len(self._regex):
            raise _NotPlainError
        return part

    def _peek(self) -> str:
        return self._regex[self._at : self._at + 1]

    def _take(self) -> str:
        char = self._peek()
        if not char:
            raise _NotPlainError
        self._at += 1
        return char

    def _choices(self) -> Part:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _NotPlainError
        found = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            found.append(self._sequence())
        self._depth -= 1
        return found[0] if len(found) == 1 else AnyOf(tuple(found))

    def _sequence(self) -> Part:
        parts: list[Part] = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._quantified(self._atom()))
        return parts[0] if len(parts) == 1 else InOrder(tuple(parts))

    def _atom(self) -> Part:
        char = self._take()
        if char == "(":
            if self._regex.startswith("?:", self._at):
                self._at += 2
            elif self._peek() == "?":
                raise _NotPlainError
            part = self._choices()
            if self._take() != ")":
                raise _NotPlainError
            return part
        if char == "[":
            return self._class()
        if char == ".":
            return OneOf(_others(((10, 10),)))
        if char == "\\":
            return OneOf(self._escaped())
        if char in _SPECIAL:
            raise _NotPlainError
        return _character(char)

    def _escaped(self) -> Ranges:
        char = self._take()
        if char == "d":
            return ((48, 57),)
        if char.isalnum() or not char.isascii() or char == "_":
            if char not in _ESCAPED:
                raise _NotPlainError
            char = _ESCAPED[char]
        return ((ord(char), ord(char)),)

    def _class(self) -> OneOf:
        negated = self._peek() == "^"
        self._at += negated
        found: list[tuple[int, int]] = []
        while (char := self._take()) != "]" or not found:
            if char in "[]&~^" or (char == "-" and self._peek() == "-"):
                raise _NotPlainError
            one = self._escaped() if char == "\\" else ((ord(char), ord(char)),)
            if self._peek() == "-" and self._regex[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                last = self._take()
                end = self._escaped() if last == "\\" else ((ord(last), ord(last)),)
                is_range = one[0][0] == one[0][1] and end[0][0] == end[0][1] and last not in "[&~-"
                if not is_range or end[0][0] < one[0][0] or char == "-":
                    raise _NotPlainError
                one = ((one[0][0], end[0][0]),)
            found += one
        ranges = _joined(found)
        return OneOf(_others(ranges) if negated else ranges)

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


def _joined(ranges: list[tuple[int, int]]) -> Ranges:
    """[(3, 5), (1, 2), (5, 9)] -> ((1, 9),)"""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return tuple(found)


def _others(ranges: Ranges) -> Ranges:
    """All characters but these."""
    found, at = [], 0
    for first, last in _joined([*ranges, _SURROGATES]):
        if first > at:
            found.append((at, first - 1))
        at = last + 1
    if at <= _MAX_UNICODE:
        found.append((at, _MAX_UNICODE))
    return tuple(found)
