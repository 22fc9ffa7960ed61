"""A second judge of regexes: by derivatives, over characters, with no automaton and no library.

The derivative of a language by a character is what may follow that character. A text is the
beginning of a match exactly when the derivative by all of it is not the empty language. Read
with Python's own regex parser; knows literals, classes, groups, alternatives and repeats.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

# Not for the public, so without types; no other parser reads regexes as Python does.
op: Any = importlib.import_module("re._constants")
parser: Any = importlib.import_module("re._parser")

# A language is one of: NOTHING, EMPTY, ("char", {which}, negated), ("then", a, b), ("or", {..}),
# ("many", a); `which` are ranges of code points, both ends included, and categories. Built by the
# functions below alone, which keep NOTHING out of everything else: so a language is empty exactly
# when it is NOTHING.
Language = tuple[Any, ...]
NOTHING: Language = ("nothing",)
EMPTY: Language = ("empty",)
NEWLINE = (10, 10)


def is_word(char: str) -> bool:
    return char.isalnum() or char == "_"


def is_space(char: str) -> bool:
    """As in the grammar engine, which leaves out four separators that Python calls space."""
    return char.isspace() and char not in "\x1c\x1d\x1e\x1f"


CATEGORIES: dict[Any, Callable[[str], bool]] = {
    op.CATEGORY_DIGIT: str.isdecimal,
    op.CATEGORY_SPACE: is_space,
    op.CATEGORY_WORD: is_word,
    op.CATEGORY_NOT_DIGIT: lambda char: not char.isdecimal(),
    op.CATEGORY_NOT_SPACE: lambda char: not is_space(char),
    op.CATEGORY_NOT_WORD: lambda char: not is_word(char),
}


def then(a: Language, b: Language) -> Language:
    if NOTHING in (a, b):
        return NOTHING
    if a == EMPTY:
        return b
    return a if b == EMPTY else ("then", a, b)


def either(options: Iterable[Language]) -> Language:
    flat: set[Language] = set()
    for one in options:
        flat |= one[1] if one[0] == "or" else {one}
    flat.discard(NOTHING)
    if len(flat) == 1:
        return flat.pop()
    return ("or", frozenset(flat)) if flat else NOTHING


def many(a: Language) -> Language:
    return EMPTY if a in (NOTHING, EMPTY) else a if a[0] == "many" else ("many", a)


def times(a: Language, low: int, high: int | None) -> Language:
    made = many(a) if high is None else EMPTY
    for _ in range(0 if high is None else high - low):
        made = either([EMPTY, then(a, made)])
    for _ in range(low):
        made = then(a, made)
    return made


def literally(text: str) -> Language:
    made = EMPTY
    for char in reversed(text):
        made = then(("char", frozenset({(ord(char), ord(char))}), False), made)
    return made


@lru_cache(maxsize=100_000)
def has_empty(a: Language) -> bool:
    """Whether the empty text is in the language."""
    if a[0] == "then":
        return has_empty(a[1]) and has_empty(a[2])
    if a[0] == "or":
        return any(has_empty(one) for one in a[1])
    return a[0] in ("empty", "many")


@lru_cache(maxsize=100_000)
def after(a: Language, char: str) -> Language:
    """What may follow this character."""
    if a[0] == "char":
        inside = any(_is_in(char, which) for which in a[1])
        return EMPTY if inside != a[2] else NOTHING
    if a[0] == "then":
        rest = then(after(a[1], char), a[2])
        return either([rest, after(a[2], char)]) if has_empty(a[1]) else rest
    if a[0] == "or":
        return either(after(one, char) for one in a[1])
    if a[0] == "many":
        return then(after(a[1], char), a)
    return NOTHING


def after_text(a: Language, text: str) -> Language:
    for char in text:
        a = after(a, char)
        if a == NOTHING:
            return a
    return a


def language(regex: str) -> Language:
    """The language of a regex, matched from end to end."""
    return _sequence(parser.parse(regex))


def _sequence(items: Iterable[tuple[Any, Any]]) -> Language:
    made = EMPTY
    for kind, value in reversed(list(items)):
        made = then(_item(kind, value), made)
    return made


def _item(kind: Any, value: Any) -> Language:
    if kind is op.LITERAL:
        return ("char", frozenset({(value, value)}), False)
    if kind is op.NOT_LITERAL:
        return ("char", frozenset({(value, value)}), True)
    if kind is op.ANY:
        return ("char", frozenset({NEWLINE}), True)
    if kind is op.IN:
        negated = value[0][0] is op.NEGATE
        ranges = frozenset(_ranges(k, v) for k, v in value[1 if negated else 0 :])
        return ("char", ranges, negated)
    if kind is op.BRANCH:
        return either(_sequence(option) for option in value[1])
    if kind is op.SUBPATTERN:
        return _sequence(value[3])
    if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
        low, high, body = value
        return times(_sequence(body), low, None if high is op.MAXREPEAT else high)
    if kind is op.AT:  # whole matches only, so an anchor at an end says nothing
        return EMPTY
    raise NotImplementedError(f"{kind} is beyond this judge")


def _ranges(kind: Any, value: Any) -> Any:
    if kind is op.LITERAL:
        return (value, value)
    return value  # a range, or a category


def _is_in(char: str, which: Any) -> bool:
    if isinstance(which, tuple):
        return bool(which[0] <= ord(char) <= which[1])
    return CATEGORIES[which](char)
