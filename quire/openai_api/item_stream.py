"""One streamed answer as items (thoughts, a text, calls), for /v1/responses and /v1/messages."""

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
    """Takes the outputs of the one row of a body. An item begins before its text, and ends before
    the next item; subclasses make the events for that."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._parts: AnswerParts | None = None
        self._open = ""  # the kind of item that text goes to: "", "message" or "reasoning"
        self._text: list[str] = []  # of that item

    def opening(self, first: Output) -> Iterator[Event]:
        """No events before the engine's first output."""
        return iter(())

    def closing(self) -> Iterator[Event]:
        """No events after the engine's last output."""
        return iter(())

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
        """The events before all items, made with the first output."""

    @abstractmethod
    def _begun(self) -> Iterator[Event]:
        """The events for the beginning of the open item."""

    @abstractmethod
    def _delta(self, text: str) -> Iterator[Event]:
        """The events for more text of the open item."""

    @abstractmethod
    def _done(self, text: str, status: Status) -> Iterator[Event]:
        """The events for the end of the open item, with its whole text."""

    @abstractmethod
    def _call(self, call: Call) -> Iterator[Event]:
        """The events of a whole item that is a call."""

    @abstractmethod
    def _ended(self, answer: Answer, output: Output) -> Iterator[Event]:
        """The events for the end of the answer; the last item may still be open."""
