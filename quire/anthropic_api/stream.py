"""The events of a message that streams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from quire.anthropic_api.answers import (
    Block,
    begun,
    open_call,
    signature,
    stopped,
    text_block,
    usage_of,
)
from quire.openai_api.asks import Asked
from quire.openai_api.item_stream import Event, ItemStream
from quire.openai_api.outputs import Answer, Call, Output
from quire.openai_api.shapes import Status


class MessageStream(ItemStream):
    """The events of one message; events open each block before its content and close it after."""

    def __init__(self, asked: Asked, *, id: str, model: str) -> None:
        super().__init__(asked)
        self._id, self._model = id, model
        self._num_blocks = 0
        self._calls: list[Call] = []

    def _opening(self, output: Output) -> Iterator[Event]:
        message = begun(self._asked, output, id=self._id, model=self._model)
        yield {"type": "message_start", "message": message}

    def _begun(self) -> Iterator[Event]:
        empty = {"type": "thinking", "thinking": "", "signature": ""}
        yield self._start(empty if self._open == "reasoning" else text_block(""))

    def _delta(self, text: str) -> Iterator[Event]:
        name = "thinking" if self._open == "reasoning" else "text"
        yield self._more({"type": f"{name}_delta", name: text})

    def _done(self, text: str, status: Status) -> Iterator[Event]:
        if self._open == "reasoning":
            yield self._more({"type": "signature_delta", "signature": signature(text)})
        yield self._stop()

    def _call(self, call: Call) -> Iterator[Event]:
        yield self._start(open_call(call, self._id, len(self._calls)))
        yield self._more({"type": "input_json_delta", "partial_json": call.arguments})
        yield self._stop()
        self._calls.append(call)

    def _ended(self, answer: Answer, output: Output) -> Iterator[Event]:
        yield from self._close()
        reason, stop = stopped(answer, tuple(self._calls))
        yield {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": stop},
            "usage": usage_of(self._asked, output),
        }
        yield {"type": "message_stop"}

    def _start(self, block: Block) -> Event:
        return {"type": "content_block_start", "index": self._num_blocks, "content_block": block}

    def _more(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": self._num_blocks, "delta": delta}

    def _stop(self) -> Event:
        i, self._num_blocks = self._num_blocks, self._num_blocks + 1
        return {"type": "content_block_stop", "index": i}
