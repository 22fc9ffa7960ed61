"""Answers in channels, as gpt-oss writes them: before each message is a header with its purpose.

  <|channel|>analysis<|message|>why<|end|><|start|>assistant<|channel|>final<|message|>so<|return|>
  <|channel|>commentary to=functions.f <|constrain|>json<|message|>{"x": 1}<|call|>

Messages of `analysis`, and those to tools of the model's own, are reasoning; those to functions are
calls; all others are the answer. A text is read once, in pieces of any size.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

CHANNEL = "<|channel|>"
_MESSAGE, _START = "<|message|>", "<|start|>"
_TO, _FUNCTIONS = "to=", "functions."
# What ends a message; the last two begin the next one's header.
_ENDS = ("<|end|>", "<|return|>", "<|call|>", _START, CHANNEL)
_END = re.compile("|".join(re.escape(mark) for mark in _ENDS))
# The beginning of an answer with the recipient before the channel; names are limited in length.
_ADDRESS = re.compile(r"to=[\w.-]{0,200} ?")
# The headers that may follow reasoning.
AFTER_REASONING = (f"{CHANNEL}final", f"{CHANNEL}commentary")

Kind = Literal["reasoning", "content", "call"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Some text of message number `message`; of a call, `name` is the function's."""

    message: int
    kind: Kind
    text: str
    name: str = ""


def is_in_channels(text: str) -> bool:
    """Whether an answer begins with a header."""
    return _unaddressed(text).startswith((CHANNEL, _START))


def may_become_channels(text: str) -> bool:
    """Whether the beginning of an answer may be that of a header."""
    body = _unaddressed(text)
    return any(mark.startswith(body) for mark in (CHANNEL, _START, _TO))


def _unaddressed(text: str) -> str:
    body = text.lstrip()
    address = _ADDRESS.match(body)
    return body if address is None else body[address.end() :]


class ChannelReader:
    """Reads an answer's text piece by piece, and returns the pieces of its messages."""

    def __init__(self) -> None:
        self._held = ""  # not given yet
        self._kind: Kind | None = None  # of the message that is open; None within a header
        self._name, self._message = "", -1

    def feed(self, text: str) -> list[Piece]:
        held, at, made = self._held + text, 0, list[Piece]()
        while True:
            if self._kind is None:
                found = held.find(_MESSAGE, at)
                if found < 0:
                    break
                made.append(self._opened(held[at:found]))
                at = found + len(_MESSAGE)
                continue
            end = _END.search(held, at)
            stop = len(held) - num_open(held, _ENDS) if end is None else end.start()
            if stop > at:
                made.append(Piece(self._message, self._kind, held[at:stop], self._name))
                at = stop
            if end is None:
                break
            self._kind = None
            at = end.start() if end[0] in (_START, CHANNEL) else end.end()
        self._held = held[at:]
        return made

    def finish(self) -> list[Piece]:
        """The text that is still held back at the end; an incomplete header is dropped."""
        held, self._held = self._held, ""
        if self._kind is None or not held:
            return []
        return [Piece(self._message, self._kind, held, self._name)]

    def _opened(self, header: str) -> Piece:
        """A message with nothing in it yet."""
        words = header.replace("<|", " <|").split()
        channel = next((w.removeprefix(CHANNEL) for w in words if w.startswith(CHANNEL)), "")
        to = next((w.removeprefix(_TO) for w in words if w.startswith(_TO)), "")
        self._message, self._name, self._kind = self._message + 1, "", "content"
        if to.startswith(_FUNCTIONS):
            self._name, self._kind = to.removeprefix(_FUNCTIONS), "call"
        elif to or channel == "analysis":
            self._kind = "reasoning"
        return Piece(self._message, self._kind, "", self._name)


def messages_of(text: str) -> list[Piece]:
    reader, parts = ChannelReader(), dict[int, list[Piece]]()
    for piece in (*reader.feed(text), *reader.finish()):
        parts.setdefault(piece.message, []).append(piece)
    return [
        Piece(number, pieces[0].kind, "".join(one.text for one in pieces), pieces[0].name)
        for number, pieces in parts.items()
    ]


def num_open(text: str, marks: tuple[str, ...] | list[str]) -> int:
    """How many characters at the end of a text may be the beginning of a mark."""
    return max(
        (
            size
            for mark in marks
            for size in range(min(len(mark) - 1, len(text)), 0, -1)
            if text.endswith(mark[:size])
        ),
        default=0,
    )
