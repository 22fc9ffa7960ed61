"""Keeps the text of messages text: a special token written in a message cannot open a turn.

A template's output is one string, in which "<|im_end|>" may come from the template or from a user.
So a message's text with a special token in it (or the beginning of one at its end) is passed to the
template as a `Quoted` string, which can be searched, split and stripped as usual. When it is
written, a mark is put after the first character of each such token; text of the template gets no
mark. Afterwards the marks are removed; they show where no special token begins.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from quire.errors import InvalidPrompt

# Code points that Unicode keeps free for a program's own use; never a character of any text.
_MARKS = [chr(code) for code in range(0xFDD2, 0xFDF0)]
# A template may change the case of a text, which must not turn it into a special token.
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


class Quoted(str):
    """Text of a message."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ChatText:
    """A rendered chat; no special token begins at the characters `literal`."""

    text: str
    literal: frozenset[int] = frozenset()
    media: Any = None  # what was given beside it (inputs/parse.py)

    def since(self, start: int) -> ChatText:
        literal = frozenset(at - start for at in self.literal if at >= start)
        return ChatText(self.text[start:], literal, self.media)


class SpecialTokens:
    """The special tokens of one tokenizer, as they are looked for in the text of messages."""

    def __init__(self, tokens: Iterable[str]) -> None:
        lowered = sorted({token.translate(_LOWER) for token in tokens if token.strip()})
        begun: dict[str, list[str]] = {}
        for token in lowered:
            for begin in {token[:1], token[:2]}:
                begun.setdefault(begin, []).append(token)
        self._by_beginning = {begin: tuple(some) for begin, some in begun.items()}
        self._firsts = sorted({token[0] for token in lowered})
        self._longest = max(map(len, lowered), default=0)
        # A fast test: most texts have none of these characters.
        firsts = "".join(map(re.escape, self._firsts))
        self._may_begin = re.compile(f"[{firsts}]" if firsts else "(?!)").search

    def found(self, text: str) -> Iterator[int]:
        """The places where a special token begins, and where the beginning of one ends the text."""
        if not self._may_begin(text):
            return
        lowered = text.translate(_LOWER)
        end = len(lowered.rstrip())
        for first in self._firsts:
            at = lowered.find(first)
            while at >= 0:
                tokens = self._by_beginning.get(lowered[at : at + 2], ())
                if (
                    lowered.startswith(tokens, at)
                    or end - at < self._longest
                    and any(
                        token.startswith(lowered[at:end]) for token in self._by_beginning[first]
                    )
                ):
                    yield at
                at = lowered.find(first, at + 1)

    def quote(self, value: Any) -> Any:
        """A message's data with texts that have special tokens as Quoted; unchanged without any."""
        if isinstance(value, str):
            if not self._may_begin(value) or next(self.found(value), None) is None:
                return value
            return Quoted(value)
        if isinstance(value, dict):
            quoted = {self.quote(key): self.quote(item) for key, item in value.items()}
            same = all(a is b for a, b in zip(value.values(), quoted.values(), strict=True))
            keys = all(a is b for a, b in zip(value, quoted, strict=True))
            return value if same and keys else quoted
        if isinstance(value, list):
            items = [self.quote(item) for item in value]
            return value if all(a is b for a, b in zip(value, items, strict=True)) else items
        return value

    def writer(self, texts: Iterable[Any]) -> Writer:
        """A Writer for Quoted text, with a mark that is in none of `texts`."""
        shown = json.dumps(list(texts), ensure_ascii=False)
        free = [m for m in _MARKS if m not in shown and _escaped(m) not in shown]
        if not free:
            raise InvalidPrompt(
                "the messages hold a special token and the code points U+FDD2 to U+FDEF, which "
                "no text has; clean them",
                parameter="messages",
            )
        return Writer(self, free[0])


def _escaped(mark: str) -> str:
    return f"\\u{ord(mark):04x}"


class Writer:
    """Writes Quoted text into the output of one rendering."""

    def __init__(self, tokens: SpecialTokens, mark: str) -> None:
        self._tokens, self.mark = tokens, mark

    def write(self, text: str) -> str:
        """The text with a mark behind the first character of each special token."""
        parts, at = [], 0
        for start in sorted(self._tokens.found(text)):
            parts += [text[at : start + 1], self.mark]
            at = start + 1
        return "".join([*parts, text[at:]])

    def written(self, value: Any) -> Any:
        """A value with every Quoted text in it written."""
        if isinstance(value, Quoted):
            return self.write(value)
        if isinstance(value, dict):
            return {self.written(key): self.written(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.written(item) for item in value]
        return value

    def read(self, output: str) -> ChatText:
        """The rendered text without the marks.

        With the mark "^", "<^|a|>x" gives "<|a|>x" and literal {0}.
        """
        # In the text of a list, and in JSON of ASCII alone, it is written as an escape.
        pieces = output.replace(_escaped(self.mark), self.mark).split(self.mark)
        literal, at = set(), 0
        for piece in pieces[:-1]:
            at += len(piece)
            literal.add(at - 1)
        return ChatText("".join(pieces), frozenset(literal))


def requoted(value: Any) -> Any:
    """The result of a method or filter on Quoted text, as Quoted, too."""
    if isinstance(value, str):
        return Quoted(value)
    if isinstance(value, list | tuple):
        return [requoted(item) for item in value]
    return value
