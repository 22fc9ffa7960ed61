"""Text: /v1/chat/completions, /v1/completions, /v1/responses, /v1/messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any

from starlette.requests import Request

from quire.openai_api.asks import Asked
from quire.openai_api.chunks import Stream
from quire.openai_api.errors import ApiError
from quire.openai_api.fields import MESSAGES
from quire.openai_api.item_stream import ItemStream
from quire.openai_api.outputs import Output
from quire.openai_api.pooling import PoolAsked, check_task
from quire.server.answering import whole_outputs
from quire.server.endpoint import Endpoint
from quire.server.events import EventResponse, event_of, unless_gone
from quire.server.reading import read_json
from quire.server.replies import json_response
from quire.server.services import Lane, Services, key_of
from quire.server.text_bodies import TEXT_PATHS, read_text_body


def endpoints(services: Services) -> dict[str, Endpoint]:
    return {path: Endpoint(partial(_answer, services, path)) for path in TEXT_PATHS}


async def _answer(services: Services, endpoint: str, request: Request) -> Any:
    """The response to a body, whole or as events, as the body asks."""
    body = await read_json(request)
    if endpoint == MESSAGES and isinstance(body, dict) and "thinking" in body:
        await services.engine.ready()  # to read a budget of thoughts, the model must be known
    number, created = number_of(request), int(time.time())
    read = read_text_body(services, endpoint, body, number=number, created=created)
    check_task("generate", services.engine.facts.get("tasks", ()))
    if read.asked.stream:
        events = _events(services, read.asked, read.stream(), key_of(request))
        return EventResponse(events, read.last)
    return json_response(read.whole(await outputs_of(services, request, read.asked)))


def number_of(request: Request) -> str:
    """The id of an answer, from the id of its request."""
    return str(request.scope["quire.request_id"]).removeprefix("req_")


def lane_of(asked: Asked | PoolAsked) -> Lane:
    return "batch" if asked.is_batch else "interactive"


async def outputs_of(
    services: Services, request: Request, asked: Asked | PoolAsked
) -> list[Output]:
    """The finished output of each row of a body; if the client leaves, all rows are given up."""
    work = whole_outputs(services, asked, lane=lane_of(asked), key_id=key_of(request))
    return await unless_gone(request.receive, work)


async def _events(
    services: Services, asked: Asked, stream: Stream | ItemStream, key_id: str
) -> AsyncGenerator[bytes, None]:
    """The events of a stream as bytes; events that come together are one piece. The first is sent
    with the engine's first output, so that a refusal before it has its own status."""
    is_open = False
    async with aclosing(row_outputs(services, asked, key_id)) as outputs:
        async for row, output in outputs:
            chunks = [] if is_open else [*stream.opening(output)]
            chunks += stream.feed(row, output)
            is_open = True
            if chunks:
                yield b"".join(event_of(chunk, chunk.get("type", "")) for chunk in chunks)
    for chunk in stream.closing():
        yield event_of(chunk)


async def row_outputs(
    services: Services, asked: Asked, key_id: str
) -> AsyncGenerator[tuple[int, Output], None]:
    """The outputs of all rows of a body, in the order in which they come."""
    lane = lane_of(asked)
    try:
        if len(asked.rows) == 1:
            async with aclosing(
                services.engine.generate(asked.rows[0], lane=lane, key_id=key_id)
            ) as alone:
                async for output in alone:
                    yield 0, output
            return
        came: asyncio.Queue[tuple[int, Output | Exception | None]] = asyncio.Queue(maxsize=64)

        async def read(number: int) -> None:
            try:
                async with aclosing(
                    services.engine.generate(asked.rows[number], lane=lane, key_id=key_id)
                ) as outputs:
                    async for output in outputs:
                        await came.put((number, output))
                await came.put((number, None))
            except Exception as error:  # raised again below, in the task of the request
                await came.put((number, error))

        tasks = [asyncio.ensure_future(read(number)) for number in range(len(asked.rows))]
        try:
            left = len(tasks)
            while left:
                number, one = await came.get()
                if isinstance(one, Exception):
                    raise one
                if one is None:
                    left -= 1
                else:
                    yield number, one
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    except ApiError as error:
        raise error.named(asked.fields) from None
