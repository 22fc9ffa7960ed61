r"""From a regex as Python and JSON Schema spell it to the one that llguidance reads.

llguidance takes Rust's syntax, which differs where a user would not expect it:

  {,3}            {0,3}
  \Z              \z
  \<  \>          < and >, which Rust would take for the ends of a word
  [a[&&]          [a\[\&\&]: inside a class, [ and && and -- and ~~ mean nothing special
  \w              without the combining marks that Python does not count as part of a word
  \d              the ten ASCII digits, which every reader of \d expects
  \S              without U+001C .. U+001F, which Python takes for spaces
  [^\d\s\w]       without any character that one of the dialects counts among them
  (?#...)         nothing
  a++, \ at the end   refused; Rust would read another language, silently

JSON Schema's `pattern` is read as ECMA-262 by some judges and as Python by others. With
`ascii_classes` the lower-case classes are ASCII's and the upper-case ones exclude all of Unicode's,
so that what is generated is valid under both.
"""

from __future__ import annotations

import re
from typing import NoReturn

from quire.errors import InvalidGrammar

# Outside a class nothing but these begins something that is spelled otherwise.
_ORDINARY = re.compile(r"[^\\\[({*+?]+")
_ESCAPED_OR_BREAK = re.compile(r"\\?[/\r\n]|\\.", re.DOTALL)
# Letters and digits that every Python since 3.11 knows; Rust's tables may be younger.
_WORD = r"[_\p{L}\p{N}&&\p{age:13.0}]"
_UNICODE = {
    "d": "[0-9]",
    "D": r"\D",
    "w": _WORD,
    "W": r"[^_\p{L}\p{N}]",
    "s": r"\s",
    "S": r"[^\s\x1c-\x1f]",
}
_ASCII = {**_UNICODE, "D": r"[^\p{Nd}]", "w": "[_0-9A-Za-z]", "s": r"[ \t\n\r\x0b\x0c]"}
# Inside [^...], where what is left out must be more rather than less.
_LEFT_OUT = {
    "d": r"\p{Nd}",
    "D": "[^0-9]",
    "w": r"[_\p{L}\p{N}]",
    "W": rf"[^{_WORD}]",
    "s": r"\s\x1c-\x1f",
    "S": r"\S",
}
_ASCII_LEFT_OUT = {**_LEFT_OUT, "W": "[^_0-9A-Za-z]", "S": r"[^ \t\n\r\x0b\x0c]"}
_RESPELLED = {"Z": r"\z", "<": "<", ">": ">"}
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 _")


def escaped(text: str) -> str:
    """A regex for exactly this text."""
    return "".join(
        c if c in _PLAIN or ord(c) > 127 and c.isprintable() else rf"\x{{{ord(c):x}}}" for c in text
    )


def one_of(texts: list[str]) -> str:
    """A regex for exactly these texts."""
    return f"(?:{'|'.join(escaped(text) for text in dict.fromkeys(texts))})"


def in_slashes(regex: str) -> str:
    r"""The regex as Lark writes it, on one line: a/b -> /a\/b/."""

    def spelled(found: re.Match[str]) -> str:
        last = found[0][-1]
        if last == "/":
            return r"\/"
        return {"\n": r"\n", "\r": r"\r"}.get(last, found[0])

    return f"/{_ESCAPED_OR_BREAK.sub(spelled, regex)}/"


def translated(regex: str, *, ascii_classes: bool = False) -> str:
    r"""The regex in llguidance's syntax: [a&&b]{,3}\Z -> [a\&\&b]{0,3}\z.

    Raises InvalidGrammar for what Rust would read as something else.
    """
    if ascii_classes:
        return _Translation(regex, _ASCII, _ASCII_LEFT_OUT).run()
    return _Translation(regex, _UNICODE, _LEFT_OUT).run()


class _Translation:
    """One pass over a regex, left to right."""

    def __init__(self, regex: str, classes: dict[str, str], left_out: dict[str, str]) -> None:
        self._regex, self._classes, self._left_out = regex, classes, left_out
        self._at = 0
        self._out: list[str] = []

    def run(self) -> str:
        regex = self._regex
        repeats = 0  # 1 after a quantifier, 2 after a lazy one
        while self._at < len(regex):
            here = regex[self._at]
            was, repeats = repeats, 0
            ordinary = _ORDINARY.match(regex, self._at)
            if ordinary:
                self._put(ordinary[0], len(ordinary[0]))
            elif here == "\\":
                self._escape()
            elif here == "[":
                self._class()
            elif regex.startswith("(?#", self._at):
                end = regex.find(")", self._at)
                if end < 0:
                    self._refuse("a comment that is not closed")
                self._at = end + 1
                repeats = was
            elif here in "*+?" or (here == "{" and self._counted() is not None):
                if was and (here != "?" or was == 2):
                    self._refuse("a quantifier after a quantifier (a++, a**, a{2}{3})")
                repeats = was + 1
                self._put(self._counted() or here, len(self._counted_text() or here))
            else:
                self._put(here)
        return "".join(self._out)

    def _put(self, text: str, width: int = 1) -> None:
        self._out.append(text)
        self._at += width

    def _refuse(self, what: str) -> NoReturn:
        raise InvalidGrammar(
            f"unsupported in a regex: {what} at character {self._at} of "
            f"{self._regex[:80]!r}; rewrite it without",
            parameter="regex",
            value=self._regex,
        )

    def _counted_text(self) -> str | None:
        """ "{2,5}" where such a quantifier begins."""
        if self._regex[self._at] != "{":
            return None
        end = self._regex.find("}", self._at, self._at + 40)
        low, comma, high = self._regex[self._at + 1 : max(end, self._at)].partition(",")
        numbers = [n for n in (low, high) if n]
        if not numbers or not all(n.isascii() and n.isdigit() for n in numbers):
            return None
        return self._regex[self._at : end + 1] if comma or low else None

    def _counted(self) -> str | None:
        text = self._counted_text()
        return None if text is None else text.replace("{,", "{0,")

    def _escape(self, *, is_left_out: bool = False) -> None:
        if self._at + 1 == len(self._regex):
            self._refuse("a backslash with nothing behind it")
        letter = self._regex[self._at + 1]
        # A class within a class is fine in Rust.
        classes = self._left_out if is_left_out else self._classes
        short = classes.get(letter) or _RESPELLED.get(letter)
        self._put(short or self._regex[self._at : self._at + 2], 2)

    def _class(self) -> None:
        """Everything up to the bracket that closes the class."""
        start = self._at
        self._put("[")
        negated = self._regex.startswith("^", self._at)
        if negated:
            self._put("^")
        if self._regex.startswith("]", self._at):
            self._put(r"\]")
        while self._at < len(self._regex):
            here = self._regex[self._at]
            if here == "]":
                return self._put("]")
            if here == "\\":
                self._escape(is_left_out=negated)
            elif here == "[":
                self._posix()
            elif here in "&~" or self._regex.startswith("--", self._at):
                self._put("\\" + here)
            else:
                self._put(here)
        self._at = start
        self._refuse("a class that is not closed")

    def _posix(self) -> None:
        """A "[" inside a class: [:alpha:] as it is, any other one as the character."""
        end = self._regex.find(":]", self._at + 2, self._at + 20)  # no name is longer
        name = self._regex[self._at + 2 : end].lstrip("^") if end > 0 else ""
        if self._regex.startswith("[:", self._at) and name.isascii() and name.isalpha():
            self._put(self._regex[self._at : end + 2], end + 2 - self._at)
        else:
            self._put(r"\[")
