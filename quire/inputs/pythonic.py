"""Reads calls in Python syntax without Python's parser: [f(x=1, y="a"), g(z=[True, None])].

The text is split into names, numbers, strings and signs, each character once; nothing is evaluated.
Python's own parser would refuse parameters called `from` or `class`, and warn about each "\\d" in a
string.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

_TEXT = r"""'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+\""""
_NAME, _NUMBER, _SIGN = r"[^\W\d]\w*+", r"[+-]?\.?[0-9][0-9+\-.eE_]*+", r"[][(){}=:,.]"
_TOKEN = re.compile(rf"\s*+({_TEXT}|{_NAME}|{_NUMBER}|{_SIGN})", re.DOTALL)
_ESCAPE = re.compile(r"\\x(.{0,2})|\\u(.{0,4})|\\U(.{0,8})|\\(.)", re.DOTALL)
_DIGITS = (0, 2, 4, 8)  # of each of these
_WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "f": "\f", "a": "\a", "v": "\v"}
_ESCAPES |= {"'": "'", '"': '"', "\\": "\\", "\n": ""}
_QUOTES = ("'", '"')
_CLOSING = {"[": "]", "(": ")"}
_MAX_DEPTH = 51  # brackets within brackets, those of a call among them
_MAX_DIGITS = 400

Calls = list[tuple[str, dict[str, Any]]]
Made = TypeVar("Made")


class _Unreadable(Exception):
    """The text is not a list of calls; never leaves this file."""


def read_pythonic_calls(text: str) -> Calls | None:
    """The calls in their order, or None if the text is anything else than a list of calls."""
    try:
        return _Reader(text).calls()
    except _Unreadable:
        return None


class _Reader:
    def __init__(self, text: str) -> None:
        self._tokens, self._depth = deque(_tokens(text)), 0

    def calls(self) -> Calls:
        self._expect("[")
        found = [self._call()]
        while self._take(","):
            found.append(self._call())
        self._expect("]")
        if self._tokens:
            raise _Unreadable
        return found

    def _call(self) -> tuple[str, dict[str, Any]]:
        name = self._name()
        while self._take("."):
            name += f".{self._name()}"
        self._expect("(")
        return name, dict(self._several(self._argument, ")"))

    def _argument(self) -> tuple[str, Any]:
        name = self._name()
        self._expect("=")
        return name, self._value()

    def _value(self) -> Any:
        token = self._next()
        if token in _CLOSING:
            return list(self._several(self._value, _CLOSING[token]))
        if token == "{":
            return dict(self._several(self._item, "}"))
        if token.startswith(_QUOTES):
            return _unquoted(token)
        return _WORDS[token] if token in _WORDS else _number(token)

    def _item(self) -> tuple[str, Any]:
        key = self._next()
        if not key.startswith(_QUOTES):
            raise _Unreadable
        self._expect(":")
        return _unquoted(key), self._value()

    def _several(self, read: Callable[[], Made], closing: str) -> Iterator[Made]:
        """Several values with commas between them; the last may have a comma, too."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _Unreadable
        while not self._take(closing):
            yield read()
            if not self._take(","):
                self._expect(closing)
                break
        self._depth -= 1

    def _name(self) -> str:
        name = self._next()
        if not name.isidentifier():
            raise _Unreadable
        return name

    def _next(self) -> str:
        return self._tokens.popleft() if self._tokens else ""

    def _take(self, sign: str) -> bool:
        found = bool(self._tokens) and self._tokens[0] == sign
        if found:
            self._tokens.popleft()
        return found

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            raise _Unreadable


def _tokens(text: str) -> Iterator[str]:
    at = 0
    while (found := _TOKEN.match(text, at)) is not None:
        yield found[1]
        at = found.end()
    if text[at:].strip():
        raise _Unreadable


def _number(token: str) -> int | float:
    # Converting digits takes time quadratic in their number; "nan" is a name here.
    if len(token) > _MAX_DIGITS or token.isidentifier():
        raise _Unreadable
    for read in (int, float):
        try:
            return read(token)
        except ValueError:
            continue
    raise _Unreadable


def _unquoted(token: str) -> str:
    return _ESCAPE.sub(_character, token[1:-1])


def _character(escape: re.Match[str]) -> str:
    if escape[4] is not None:
        return _ESCAPES.get(escape[4], escape[0])  # any other backslash stays, as in Python
    kind = escape.lastindex or 0
    if len(escape[kind]) < _DIGITS[kind]:
        raise _Unreadable
    try:
        return chr(int(escape[kind], 16))
    except (ValueError, OverflowError):
        raise _Unreadable from None
