r"""Translates regexes from the syntax of Python and JSON Schema to the one of llguidance.

llguidance reads Rust's syntax, which differs in some places:

  {,3}            {0,3}
  \Z              \z
  \<  \>          < and >, which Rust would take for the ends of a word
  [a[&&]          [a\[\&\&]: inside a class, [ and && and -- and ~~ have no special meaning
  \w              without the combining marks that Python does not count as part of a word
  \d              the ten ASCII digits, which every reader of \d expects
  \S              without U+001C .. U+001F, which Python takes for spaces
  [^\d\s\w]       without any character that one of the dialects counts among these
  (?#...)         nothing
  a++, \ at the end   refused: Rust would silently read them as another language

Some validators read JSON Schema's `pattern` as ECMA-262 and others as Python. With `ascii_classes`
lower-case classes are those of ASCII and upper-case ones exclude all of Unicode's, so that the text
is valid under both.
"""

from __future__ import annotations

import re

from quire.errors import InvalidGrammar

# [:alpha:] inside a class; no name is longer than 16.
_POSIX = r"\[:(?=[^:]{1,16}:\])\^*[a-zA-Z]+:\]"
_IN_CLASS = re.compile(rf"\\.|{_POSIX}|[\[&~]|-(?=-)", re.DOTALL)
_TOKEN = re.compile(
    r"(?P<escape>\\.)"
    rf"|(?P<chars>\[\^?+\]?+(?:\\.|{_POSIX}|[^\]\\])*+\])"
    r"|(?P<comment>\(\?\#[^)]*+\))"
    r"|(?P<quantifier>[*+?]|\{(?=[0-9,]{1,38}\})(?:[0-9]+(?:,[0-9]*)?|,[0-9]+)\})"
    r"|(?P<plain>[^\\\[({*+?]+|\((?!\?\#)|\{)"
    r"|(?P<open>.)",
    re.DOTALL,
)
_OPEN = {
    "\\": "a backslash with nothing behind it",
    "[": "a class that is not closed",
    "(": "a comment that is not closed",
}
_ESCAPED_OR_BREAK = re.compile(r"\\?[/\r\n]|\\.", re.DOTALL)
# Letters and digits that every Python since 3.11 knows; Rust's tables may be newer.
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
# Inside [^...], where more must be left out, not less.
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

    Raises InvalidGrammar for regexes that Rust would read differently.
    """
    classes, left_out = (_ASCII, _ASCII_LEFT_OUT) if ascii_classes else (_UNICODE, _LEFT_OUT)
    out: list[str] = []
    repeats = 0  # 1 after a quantifier, 2 after a lazy one
    for token in _TOKEN.finditer(regex):
        text, was, repeats = token[0], repeats, 0
        match token.lastgroup:
            case "escape":
                out.append(_respelled(text, classes))
            case "chars":
                out.append(_class(text, left_out if text[1] == "^" else classes))
            case "comment":
                repeats = was
            case "quantifier":
                if was and (text != "?" or was == 2):
                    what = "a quantifier after a quantifier (a++, a**, a{2}{3})"
                    raise _refused(regex, what, token.start())
                repeats = was + 1
                out.append(text.replace("{,", "{0,"))
            case "open":
                raise _refused(regex, _OPEN[text], token.start())
            case _:
                out.append(text)
    return "".join(out)


def _respelled(escape: str, classes: dict[str, str]) -> str:
    letter = escape[1]
    return classes.get(letter) or _RESPELLED.get(letter) or escape


def _class(text: str, classes: dict[str, str]) -> str:
    """[...] with characters escaped that are special in Rust only."""

    def spelled(found: re.Match[str]) -> str:
        if found[0][0] == "\\":
            return _respelled(found[0], classes)  # a class within a class is fine in Rust
        return found[0] if found[0].startswith("[:") else "\\" + found[0]

    begin = 2 if text[1] == "^" else 1
    first = "\\]" if text[begin] == "]" else ""
    return text[:begin] + first + _IN_CLASS.sub(spelled, text[begin + bool(first) : -1]) + "]"


def _refused(regex: str, what: str, at: int) -> InvalidGrammar:
    return InvalidGrammar(
        f"unsupported in a regex: {what} at character {at} of {regex[:80]!r}; rewrite it without",
        parameter="regex",
        value=regex,
    )
