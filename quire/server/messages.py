"""/v1/messages, in Anthropic's words."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from quire.anthropic_api.answers import CountedTokens, message_body
from quire.anthropic_api.messages import COUNTED, read_counted, read_message
from quire.anthropic_api.stream import MessageStream
from quire.openai_api.errors import ApiError
from quire.openai_api.fields import MESSAGES
from quire.server.endpoint import Endpoint
from quire.server.generation import answered, number_of
from quire.server.reading import JSON_REFUSALS, read_json
from quire.server.replies import json_response
from quire.server.route import ApiRoute
from quire.server.services import CALL_REFUSALS, Services

COUNT = f"{MESSAGES}/count_tokens"


def endpoints(services: Services) -> dict[str, Endpoint]:
    async def respond(request: Request) -> Any:
        body, names = await read_json(request), services.names
        if isinstance(body, dict) and "thinking" in body:
            await services.engine.ready()  # what a budget means depends on the model
        bounds = bool(services.engine.facts.get("bounds_thoughts"))
        asked = read_message(body, names, bounds_thoughts=bounds)
        about: Any = {"id": f"msg_{number_of(request)}", "model": asked.model or names[0]}
        return await answered(
            *(services, request, asked),
            stream=partial(MessageStream, asked, **about),
            whole=lambda outputs: message_body(asked, outputs[0], **about),
            last=b"",
        )

    return {MESSAGES: Endpoint(respond)}


def routes(services: Services) -> list[ApiRoute]:
    async def count(request: Request) -> Response:
        row, fields = read_counted(await read_json(request), services.names)
        try:
            told = await services.engine.call("tokenize", row=row, strings=False)
        except ApiError as error:
            raise error.named(fields) from None
        counted: CountedTokens = {"input_tokens": told["count"]}
        return json_response(counted)

    return [
        ApiRoute(
            *("POST", COUNT, count),
            body=COUNTED,
            refusals=JSON_REFUSALS | CALL_REFUSALS | {404},  # another model
            shape=CountedTokens,
            needs_model=True,
        )
    ]
