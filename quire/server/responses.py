"""/v1/responses: text, without a memory."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from starlette.requests import Request

from quire.openai_api.fields import RESPONSES
from quire.openai_api.response_stream import ResponseStream
from quire.openai_api.responses import About, read_response, response_object
from quire.server.endpoint import Endpoint
from quire.server.items import answered
from quire.server.reading import read_json
from quire.server.services import Services


def endpoints(services: Services) -> dict[str, Endpoint]:
    async def respond(request: Request) -> Any:
        asked, given = read_response(await read_json(request), services.names)
        number = str(request.scope["quire.request_id"]).removeprefix("req_")
        about = About(number, int(time.time()), asked.model or services.settings.names[0], given)
        return await answered(
            *(services, request, asked),
            stream=partial(ResponseStream, asked, about),
            whole=partial(response_object, asked, about=about),
        )

    return {RESPONSES: Endpoint(respond)}
