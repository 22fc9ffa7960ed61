"""Text of messages stays text: a special token written in it opens no turn.

A template's output is one string, in which "<|im_end|>" may be the template's own or a user's. So
a message's text that holds a special token (or ends with the beginning of one) goes through the
template as `Quoted`, which it can search, split and strip as ever. Where it is written out, a mark
is put behind the first character of each such token; what the template wrote has none. The marks
are taken out again, and say where no special token begins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from quire.errors import InvalidPrompt

# Code points that Unicode keeps free for a program's own use; never a character of any text.
_MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]


class Quoted(str):
    """Text of a message."""

    __slots__ = ()


class ChatText(NamedTuple):
    """A rendered chat; no special token begins at the characters `literal`."""

    text: str
    literal: tuple[int, ...] = ()


class SpecialTokens:
    """The special tokens of one tokenizer, as they are looked for in the text of messages."""

    def __init__(self, tokens: Iterable[str]) -> None:
        found = sorted({token for token in tokens if token.strip()}, key=len, reverse=True)
        whole = [re.escape(token) for token in found]
        # The beginning of a token at the end of a text: the next text may hold the rest.
        begun = {re.escape(token[:n]) for token in found for n in range(1, len(token))}
        ends = [f"(?:{begin})(?=\\s*\\Z)" for begin in sorted(begun, key=len, reverse=True)]
        # In any case, since a template may change it.
        self._pattern = re.compile("|".join([*whole, *ends]), re.IGNORECASE) if whole else None

    def quote(self, value: Any) -> tuple[Any, bool]:
        """A message's data with what holds special tokens Quoted, and whether anything does."""
        if isinstance(value, str):
            if self._pattern is None or not self._pattern.search(value):
                return value, False
            return Quoted(value), True
        if isinstance(value, dict):
            pairs = [(*self.quote(key), *self.quote(item)) for key, item in value.items()]
            found = any(at_key or at_item for _, at_key, _, at_item in pairs)
            return ({key: item for key, _, item, _ in pairs}, True) if found else (value, False)
        if isinstance(value, list):
            items = [self.quote(item) for item in value]
            found = any(at_item for _, at_item in items)
            return ([item for item, _ in items], True) if found else (value, False)
        return value, False

    def writer(self, *texts: str) -> Writer:
        """What writes Quoted text, with a mark that is in none of `texts`."""
        mark = next((m for m in _MARKS if not any(m in text for text in texts)), None)
        if mark is None or self._pattern is None:
            raise InvalidPrompt(
                "the messages hold a special token, and all of the code points U+FDD0 to U+FDEF, "
                "which no text has; clean them",
                parameter="messages",
            )
        return Writer(self._pattern, mark)


class Writer:
    """Writes Quoted text into the output of one rendering."""

    def __init__(self, pattern: re.Pattern[str], mark: str) -> None:
        self._pattern, self.mark = pattern, mark

    def write(self, text: str) -> str:
        """The text with a mark behind the first character of each special token."""
        mark = self.mark
        parts, at = [], 0
        while found := self._pattern.search(text, at):
            start = found.start() + 1
            parts += [text[at:start], mark]
            at = start  # a token may begin inside of another
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
        """What was rendered, without the marks.

        With the mark "^", "<^|a|>x" gives ("<|a|>x", (0,)).
        """
        pieces = output.split(self.mark)
        literal, at = [], 0
        for piece in pieces[:-1]:
            at += len(piece)
            literal.append(at - 1)
        return ChatText("".join(pieces), tuple(literal))


def requoted(value: Any) -> Any:
    """What a method or a filter made of Quoted text is Quoted as well."""
    if isinstance(value, str):
        return Quoted(value)
    if isinstance(value, list | tuple):
        return [requoted(item) for item in value]
    return value
