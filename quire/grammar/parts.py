"""The parts of a text: plain regexes and plain schemas are read into this form, from which an
automaton is made (automaton.py)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

_MAX_UNICODE = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)

Ranges = tuple[tuple[int, int], ...]  # of code points, in order, both ends included


@dataclass(frozen=True, slots=True, eq=False)
class OneOf:
    ranges: Ranges


@dataclass(frozen=True, slots=True, eq=False)
class InOrder:
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, eq=False)
class AnyOf:
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Repeated:
    """`most` None: without limit."""

    part: Part
    least: int
    most: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Both:
    """Texts that both parts have."""

    one: Part
    other: Part


@dataclass(frozen=True, slots=True, eq=False)
class Without:
    """Texts of `one` that `other` does not have."""

    one: Part
    other: Part


@dataclass(frozen=True, slots=True, eq=False)
class Multiple:
    """Decimal digits of a multiple of `of`."""

    of: int


Part = OneOf | InOrder | AnyOf | Repeated | Both | Without | Multiple

NOTHING = InOrder(())


def sign(char: str) -> OneOf:
    return OneOf(((ord(char), ord(char)),))


def spelled(text: str) -> Part:
    return InOrder(tuple(map(sign, text)))


def joined(ranges: list[tuple[int, int]]) -> Ranges:
    """[(3, 5), (1, 2), (5, 9)] -> ((1, 9),)"""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return tuple(found)


def others(ranges: Ranges) -> Ranges:
    """All characters that are not in these ranges."""
    found, at = [], 0
    for first, last in joined([*ranges, _SURROGATES]):
        if first > at:
            found.append((at, first - 1))
        at = last + 1
    if at <= _MAX_UNICODE:
        found.append((at, _MAX_UNICODE))
    return tuple(found)


ANY = OneOf(others(()))

# Characters that stand for themselves in a JSON string, and those with a letter after a backslash.
_AS_IT_IS = others(((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F)))
_LETTERS = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}


def quoted(part: Part, *, by_number: bool) -> Part:
    r"""The texts of the part as JSON writes them, without the quotes around them.

    Every character has one spelling, that of llguidance. `by_number`: controls as \u000A, too.
    """
    if isinstance(part, OneOf):
        return _quoted_character(part.ranges, by_number)
    if isinstance(part, Repeated):
        return Repeated(quoted(part.part, by_number=by_number), part.least, part.most)
    if isinstance(part, InOrder | AnyOf):
        return type(part)(tuple(quoted(one, by_number=by_number) for one in part.parts))
    raise TypeError(f"{type(part).__name__} is no part of a regex, which texts are read from")


@lru_cache(maxsize=256)
def _quoted_character(ranges: Ranges, by_number: bool) -> Part:
    escapes: list[Part] = []
    letters = [letter for char, letter in _LETTERS.items() if _holds(ranges, ord(char))]
    if letters:
        escapes.append(OneOf(joined([(ord(letter), ord(letter)) for letter in letters])))
    for high in (0x00, 0x10, 0x70) if by_number else ():
        lows = [low for low in range(16) if high < 0x70 or low == 15]
        digits = "".join(f"{low:x}{low:X}" for low in lows if _holds(ranges, high + low))
        if digits:
            last = OneOf(joined([(ord(digit), ord(digit)) for digit in digits]))
            escapes.append(InOrder((spelled(f"u00{high >> 4:x}"), last)))
    plain = OneOf(_shared(ranges, _AS_IT_IS))
    if not escapes:
        return plain
    return AnyOf((plain, InOrder((sign("\\"), AnyOf(tuple(escapes))))))


def _holds(ranges: Ranges, code: int) -> bool:
    return any(first <= code <= last for first, last in ranges)


def _shared(one: Ranges, other: Ranges) -> Ranges:
    found = ((max(a, c), min(b, d)) for a, b in one for c, d in other)
    return tuple(sorted((first, last) for first, last in found if first <= last))
