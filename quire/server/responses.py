"""/v1/responses: text, without a memory."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request

from quire.openai_api.asks import Asked
from quire.openai_api.fields import RESPONSES
from quire.openai_api.pooling import check_task
from quire.openai_api.response_stream import ResponseStream
from quire.openai_api.responses import About, read_response, response_object
from quire.server.endpoint import Endpoint
from quire.server.events import EventResponse, event_of
from quire.server.generation import outputs_of, row_outputs
from quire.server.reading import read_json
from quire.server.replies import json_response
from quire.server.services import Services, key_of


def endpoints(services: Services) -> dict[str, Endpoint]:
    async def respond(request: Request) -> Any:
        asked, given = read_response(await read_json(request), services.settings.names)
        check_task("generate", services.engine.facts.get("tasks", ()))
        number = str(request.scope["quire.request_id"]).removeprefix("req_")
        about = About(number, int(time.time()), asked.model or services.settings.names[0], given)
        if asked.stream:
            stream = ResponseStream(asked, about)
            return EventResponse(_events(services, asked, stream, key_of(request)), last=b"")
        [output] = await outputs_of(services, request, asked)
        return json_response(response_object(asked, output, about))

    return {RESPONSES: Endpoint(respond)}


async def _events(
    services: Services, asked: Asked, stream: ResponseStream, key_id: str
) -> AsyncGenerator[bytes, None]:
    is_open = False
    async with aclosing(row_outputs(services, asked, key_id)) as outputs:
        async for _, output in outputs:
            if not is_open:
                is_open = True
                for event in stream.opening():
                    yield event_of(event, event["type"])
            for event in stream.feed(output):
                yield event_of(event, event["type"])
