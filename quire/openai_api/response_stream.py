"""The events of a response that streams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from quire.openai_api.answer_parts import AnswerParts
from quire.openai_api.asks import Asked
from quire.openai_api.bodies import chat_score
from quire.openai_api.outputs import Answer, Call, Output
from quire.openai_api.responses import (
    About,
    Event,
    call_item,
    message_item,
    reasoning_item,
    status_of,
    text_part,
)
from quire.openai_api.shapes import ScoredToken, Status
from quire.openai_api.split_stream import Parts


class ResponseStream:
    """The events of one response, numbered; an item and its part are opened before their text."""

    def __init__(self, asked: Asked, about: About) -> None:
        self._asked, self._about = asked, about
        self._number = 0
        self._items: list[Event] = []  # those that are done
        self._open = ""  # the kind of item that text goes to: "", "message" or "reasoning"
        self._text: list[str] = []
        self._parts: AnswerParts | None = None
        self._scores: list[ScoredToken] = []  # of tokens that were not shown yet
        self._shown_scores: list[ScoredToken] = []  # of the item that is open

    def opening(self) -> Iterator[Event]:
        body = self._about.body("in_progress", [], None)
        yield self._event("response.created", response=body)
        yield self._event("response.in_progress", response=body)

    def feed(self, output: Output) -> Iterator[Event]:
        if self._parts is None:
            self._parts = AnswerParts(self._asked, output)
        for answer in output.answers:
            self._scores += map(chat_score, answer.logprobs or ())
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
            yield from self._call(call)

    def _write(self, kind: str, text: str) -> Iterator[Event]:
        if self._open != kind:
            yield from self._close()
            yield from self._begin(kind)
        self._text.append(text)
        name = "output_text" if kind == "message" else "reasoning_text"
        scores, self._scores = self._scores, []
        self._shown_scores += scores
        more: Event = {"logprobs": scores} if kind == "message" else {}
        yield self._event(f"response.{name}.delta", **self._place(), delta=text, **more)

    def _begin(self, kind: str) -> Iterator[Event]:
        self._open, self._text, self._shown_scores = kind, [], []
        yield self._event(
            "response.output_item.added",
            output_index=len(self._items),
            item=self._item(None, "in_progress"),
        )
        yield self._event("response.content_part.added", **self._place(), part=self._part(""))

    def _item(self, text: str | None, status: Status) -> Event:
        i = len(self._items)
        if self._open == "message":
            return message_item(self._about, i, text, self._shown_scores, status)
        return reasoning_item(self._about, i, text, status)

    def _part(self, text: str) -> Event:
        if self._open == "message":
            return text_part(text, self._shown_scores)
        return {"type": "reasoning_text", "text": text}

    def _place(self) -> Event:
        prefix = "msg" if self._open == "message" else "rs"
        i = len(self._items)
        item = f"{prefix}_{self._about.number}_{i}"
        return {"item_id": item, "output_index": i, "content_index": 0}

    def _close(self, status: Status = "completed") -> Iterator[Event]:
        if not self._open:
            return
        text = "".join(self._text)
        name = "output_text" if self._open == "message" else "reasoning_text"
        more: Event = {"logprobs": self._shown_scores} if self._open == "message" else {}
        yield self._event(f"response.{name}.done", **self._place(), text=text, **more)
        yield self._event("response.content_part.done", **self._place(), part=self._part(text))
        item = self._item(text, status)
        yield self._event("response.output_item.done", output_index=len(self._items), item=item)
        self._items.append(item)
        self._open = ""

    def _call(self, call: Call) -> Iterator[Event]:
        yield from self._close()
        i = len(self._items)
        begun = {**call_item(self._about, i, call, "in_progress"), "arguments": ""}
        item = call_item(self._about, i, call)
        place = {"item_id": item["id"], "output_index": i}
        name = "response.function_call_arguments"
        yield self._event("response.output_item.added", output_index=i, item=begun)
        yield self._event(f"{name}.delta", **place, delta=call.arguments)
        yield self._event(f"{name}.done", **place, name=call.name, arguments=call.arguments)
        yield self._event("response.output_item.done", output_index=i, item=item)
        self._items.append(item)

    def _ended(self, answer: Answer, output: Output) -> Iterator[Event]:
        if not self._items and not self._open:
            yield from self._begin("message")
        status = status_of(answer)
        yield from self._close(status)
        body = self._about.body(status, self._items, output)
        yield self._event(f"response.{status}", response=body)

    def _event(self, kind: str, **more: Any) -> Event:
        number, self._number = self._number, self._number + 1
        return {"type": kind, "sequence_number": number, **more}
