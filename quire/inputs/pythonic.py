"""Calls written as Python, read without Python: [f(x=1, y="a"), g(z=[True, None])].

A scanner of its own for names, keyword arguments and literals. Nothing is evaluated, and each
character is looked at once. Python's own parser would refuse what models write for tools that
have a parameter `from` or `class`, and warn of each "\\d" in a text.
"""

from __future__ import annotations

from typing import Any

_WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "f": "\f", "a": "\a", "v": "\v"}
_ESCAPES |= {"'": "'", '"': '"', "\\": "\\", "\n": ""}
_HEX = {"x": 2, "u": 4, "U": 8}
_NUMBER = frozenset("0123456789+-.eE_")
_MAX_DEPTH = 50
_MAX_DIGITS = 400

Calls = list[tuple[str, dict[str, Any]]]


class _Unreadable(Exception):
    """The text is not a list of calls; never leaves this file."""


def read_pythonic_calls(text: str) -> Calls | None:
    """The calls in their order, or None if the text is anything else than a list of calls."""
    try:
        return _Scanner(text).calls()
    except _Unreadable:
        return None


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text, self._at, self._depth = text, 0, 0

    def calls(self) -> Calls:
        found: Calls = []
        self._expect("[")
        while True:
            name = self._dotted_name()
            self._expect("(")
            found.append((name, self._arguments()))
            if not self._take(","):
                break
        self._expect("]")
        if self._peek():
            raise _Unreadable
        return found

    def _arguments(self) -> dict[str, Any]:
        arguments: dict[str, Any] = {}
        while not self._take(")"):
            name = self._name()
            self._expect("=")
            arguments[name] = self._value()
            if not self._take(","):
                self._expect(")")
                break
        return arguments

    def _value(self) -> Any:
        here = self._peek()
        if here in ("'", '"'):
            return self._string()
        if here == "[":
            return self._list("[", "]")
        if here == "(":
            return self._list("(", ")")
        if here == "{":
            return self._dict()
        if here in _NUMBER:
            return self._number()
        word = self._name()
        if word not in _WORDS:
            raise _Unreadable
        return _WORDS[word]

    def _list(self, opening: str, closing: str) -> list[Any]:
        self._descend(opening)
        values: list[Any] = []
        while not self._take(closing):
            values.append(self._value())
            if not self._take(","):
                self._expect(closing)
                break
        self._depth -= 1
        return values

    def _dict(self) -> dict[str, Any]:
        self._descend("{")
        values: dict[str, Any] = {}
        while not self._take("}"):
            if self._peek() not in ("'", '"'):
                raise _Unreadable
            key = self._string()
            self._expect(":")
            values[key] = self._value()
            if not self._take(","):
                self._expect("}")
                break
        self._depth -= 1
        return values

    def _descend(self, opening: str) -> None:
        self._expect(opening)
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _Unreadable

    def _number(self) -> int | float:
        start = self._at
        while self._at < len(self._text) and self._text[self._at] in _NUMBER:
            self._at += 1
        spelled = self._text[start : self._at]
        if len(spelled) > _MAX_DIGITS:  # reading digits takes the square of their number
            raise _Unreadable
        for read in (int, float):
            try:
                return read(spelled)
            except ValueError:
                continue
        raise _Unreadable

    def _string(self) -> str:
        quote = self._peek()
        self._at += 1
        parts: list[str] = []
        start = self._at
        while self._at < len(self._text) and self._text[self._at] != quote:
            if self._text[self._at] == "\\":
                parts += [self._text[start : self._at], self._escape()]
                start = self._at
            else:
                self._at += 1
        parts.append(self._text[start : self._at])
        self._expect(quote)
        return "".join(parts)

    def _escape(self) -> str:
        letter = self._text[self._at + 1 : self._at + 2]
        self._at += 2
        if letter in _HEX:
            digits = self._text[self._at : self._at + _HEX[letter]]
            self._at += _HEX[letter]
            try:
                return chr(int(digits, 16))
            except (ValueError, OverflowError):
                raise _Unreadable from None
        if not letter:
            raise _Unreadable
        return _ESCAPES.get(letter, f"\\{letter}")  # any other backslash stays, as in Python

    def _dotted_name(self) -> str:
        names = [self._name()]
        while self._take("."):
            names.append(self._name())
        return ".".join(names)

    def _name(self) -> str:
        self._skip()
        start = self._at
        while self._at < len(self._text) and (
            self._text[self._at].isalnum() or self._text[self._at] == "_"
        ):
            self._at += 1
        name = self._text[start : self._at]
        if not name.isidentifier():
            raise _Unreadable
        return name

    def _skip(self) -> None:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1

    def _peek(self) -> str:
        """The next character that is no space, "" at the end."""
        self._skip()
        return self._text[self._at : self._at + 1]

    def _take(self, char: str) -> bool:
        found = self._peek() == char
        self._at += found
        return found

    def _expect(self, char: str) -> None:
        if not self._take(char):
            raise _Unreadable
