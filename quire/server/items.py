"""Answers that are a list of items, whole or as events: what responses and messages have in
common."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from starlette.requests import Request

from quire.openai_api.asks import Asked
from quire.openai_api.item_stream import ItemStream
from quire.openai_api.outputs import Output
from quire.openai_api.pooling import check_task
from quire.server.events import EventResponse, event_of
from quire.server.generation import outputs_of, row_outputs
from quire.server.replies import json_response
from quire.server.services import Services, key_of


async def answered(
    services: Services,
    request: Request,
    asked: Asked,
    *,
    stream: Callable[[], ItemStream],
    whole: Callable[[Output], Any],
) -> Any:
    """The response to a body of one row, in the way it asks for."""
    check_task("generate", services.engine.facts.get("tasks", ()))
    if asked.stream:
        return EventResponse(_events(services, asked, stream(), key_of(request)), last=b"")
    [output] = await outputs_of(services, request, asked)
    return json_response(whole(output))


async def _events(
    services: Services, asked: Asked, stream: ItemStream, key_id: str
) -> AsyncGenerator[bytes, None]:
    async with aclosing(row_outputs(services, asked, key_id)) as outputs:
        async for _, output in outputs:
            if events := [event_of(event, event["type"]) for event in stream.feed(output)]:
                yield b"".join(events)
