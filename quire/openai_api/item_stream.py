"""One streamed answer as a list of items: thoughts, a text, calls. For responses and messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from quire.openai_api.answer_parts import AnswerParts
from quire.openai_api.asks import Asked
from quire.openai_api.outputs import Answer, Call, Output
from quire.openai_api.shapes import Status
from quire.openai_api.split_stream import Parts

Event = dict[str, Any]


class ItemStream(ABC):
    """Fed with what comes for the one row of a body. An item is begun before its text, and ended
    before the next; what that is called is for those who are made of it."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._parts: AnswerParts | None = None
        self._open = ""  # the kind of item that text goes to: "", "message" or "reasoning"
        self._text: list[str] = []  # of that item

    def opening(self) -> Iterator[Event]:
        """Nothing before the engine's first word, nor behind its last."""
        return iter(())

    closing = opening

    def feed(self, row: int, output: Output) -> Iterator[Event]:
        if self._parts is None:
            self._parts = AnswerParts(self._asked, output)
            yield from self._opening(output)
        for answer in output.answers:
            for parts in self._parts.feed(answer):
                yield from self._shown(parts)
            if answer.finish_reason is not None:
                yield from self._ended(answer, output)

    def _shown(self, parts: Parts) -> Iterator[Event]:
        if parts.reasoning and self._asked.reasoning:
            yield from self._write("reasoning", parts.reasoning)
        if parts.content:
            yield from self._write("message", parts.content)
        for call in parts.calls:
            yield from self._close()
            yield from self._call(call)

    def _write(self, kind: str, text: str) -> Iterator[Event]:
        if self._open != kind:
            yield from self._close()
            yield from self._begin(kind)
        self._text.append(text)
        yield from self._delta(text)

    def _begin(self, kind: str) -> Iterator[Event]:
        self._open, self._text = kind, []
        yield from self._begun()

    def _close(self, status: Status = "completed") -> Iterator[Event]:
        if self._open:
            yield from self._done("".join(self._text), status)
            self._open = ""

    @abstractmethod
    def _opening(self, output: Output) -> Iterator[Event]:
        """Before all items, with the first that came."""

    @abstractmethod
    def _begun(self) -> Iterator[Event]:
        """The item that is open has begun."""

    @abstractmethod
    def _delta(self, text: str) -> Iterator[Event]:
        """It goes on."""

    @abstractmethod
    def _done(self, text: str, status: Status) -> Iterator[Event]:
        """It ends, and has this text in all."""

    @abstractmethod
    def _call(self, call: Call) -> Iterator[Event]:
        """An item that is a call, whole."""

    @abstractmethod
    def _ended(self, answer: Answer, output: Output) -> Iterator[Event]:
        """The answer is over; the last item may still be open."""
