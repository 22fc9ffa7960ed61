"""Reads bodies that ask for text, at each endpoint, and makes their answers, whole or as events;
for requests and for lines of batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from quire.anthropic_api.answers import message_body
from quire.anthropic_api.messages import read_message
from quire.anthropic_api.stream import MessageStream
from quire.openai_api.asks import Asked, read_body
from quire.openai_api.bodies import response_body
from quire.openai_api.chunks import Stream
from quire.openai_api.fields import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from quire.openai_api.item_stream import ItemStream
from quire.openai_api.outputs import Output
from quire.openai_api.response_stream import ResponseStream
from quire.openai_api.responses import About, read_response, response_object
from quire.server.events import DONE
from quire.server.services import Services

TEXT_PATHS = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)
_PREFIX = {CHAT: "chatcmpl", COMPLETIONS: "cmpl"}


@dataclass(frozen=True, slots=True)
class TextBody:
    """A body that was read. `whole` makes the answer from the finished outputs of all rows;
    `stream` makes the events, and `last` ends them."""

    asked: Asked
    whole: Callable[[list[Output]], Any]
    stream: Callable[[], Stream | ItemStream]
    last: bytes = b""


def read_text_body(
    services: Services,
    endpoint: str,
    body: Any,
    *,
    number: str,
    created: int,
    in_batch: bool = False,
) -> TextBody:
    """Read a body; raises ApiError. `number` is for the answer's id; `in_batch`: from a batch."""
    names = services.names
    if endpoint == RESPONSES:
        asked, given = read_response(body, names)
        response = About(number, created, asked.model or names[0], given)
        return TextBody(
            asked,
            lambda outputs: response_object(asked, outputs[0], response),
            partial(ResponseStream, asked, response),
        )
    if endpoint == MESSAGES:
        bounds = bool(services.engine.facts.get("bounds_thoughts"))
        read = read_message(body, names, bounds_thoughts=bounds)
        asked = replace(read, is_batch=read.is_batch or in_batch)
        about: Any = {"id": f"msg_{number}", "model": asked.model or names[0]}
        return TextBody(
            asked,
            lambda outputs: message_body(asked, outputs[0], **about),
            partial(MessageStream, asked, **about),
        )
    asked = read_body(endpoint, body, names)
    about = {
        "id": f"{_PREFIX[endpoint]}-{number}",
        "created": created,
        "model": asked.model or names[0],
    }
    return TextBody(
        asked,
        lambda outputs: response_body(asked, outputs, **about),
        partial(Stream, asked, **about),
        last=DONE,
    )
