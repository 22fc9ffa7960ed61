"""The events of a response that streams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from quire.openai_api.asks import Asked
from quire.openai_api.bodies import chat_score
from quire.openai_api.item_stream import Event, ItemStream
from quire.openai_api.outputs import Answer, Call, Output
from quire.openai_api.responses import (
    About,
    call_item,
    message_item,
    reasoning_item,
    status_of,
    text_part,
)
from quire.openai_api.shapes import ScoredToken, Status


class ResponseStream(ItemStream):
    """The events of one response, numbered; an item and its part begin before their text."""

    def __init__(self, asked: Asked, about: About) -> None:
        super().__init__(asked)
        self._about = about
        self._number = 0
        self._items: list[Event] = []  # finished items
        self._scores: list[ScoredToken] = []  # scores of tokens that were not sent yet
        self._shown_scores: list[ScoredToken] = []  # scores of the open item

    def _opening(self, output: Output) -> Iterator[Event]:
        body = self._about.body("in_progress", [], None)
        yield self._event("response.created", response=body)
        yield self._event("response.in_progress", response=body)

    def feed(self, row: int, output: Output) -> Iterator[Event]:
        for answer in output.answers:
            self._scores += map(chat_score, answer.logprobs or ())
        yield from super().feed(row, output)

    def _delta(self, text: str) -> Iterator[Event]:
        name = "output_text" if self._open == "message" else "reasoning_text"
        scores, self._scores = self._scores, []
        self._shown_scores += scores
        more: Event = {"logprobs": scores} if self._open == "message" else {}
        yield self._event(f"response.{name}.delta", **self._place(), delta=text, **more)

    def _begun(self) -> Iterator[Event]:
        self._shown_scores = []
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

    def _done(self, text: str, status: Status) -> Iterator[Event]:
        name = "output_text" if self._open == "message" else "reasoning_text"
        more: Event = {"logprobs": self._shown_scores} if self._open == "message" else {}
        yield self._event(f"response.{name}.done", **self._place(), text=text, **more)
        yield self._event("response.content_part.done", **self._place(), part=self._part(text))
        item = self._item(text, status)
        yield self._event("response.output_item.done", output_index=len(self._items), item=item)
        self._items.append(item)

    def _call(self, call: Call) -> Iterator[Event]:
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
