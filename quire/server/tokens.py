"""Texts to tokens and back, and what Prometheus reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.openai_api.asks import Row, check_model
from quire.openai_api.errors import bad
from quire.openai_api.fields import LONGEST_NAME
from quire.params.rules import show
from quire.server.metrics import CONTENT_TYPE
from quire.server.reading import read_json
from quire.server.replies import json_response
from quire.server.services import Services

MOST_TOKENS = 1 << 20
_CHAT_OPTIONS = ("tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs")
_TOKENIZE = ("prompt", "messages", "add_special_tokens", "return_token_strs", *_CHAT_OPTIONS)


def routes(services: Services) -> list[Route]:
    async def tokenize(request: Request) -> Response:
        given = await _fields(request, services, _TOKENIZE)
        row: Row = {name: given[name] for name in ("prompt", "messages") if name in given}
        if len(row) != 1 or not isinstance(given.get("prompt", ""), str):
            raise bad("the body has a prompt, which is text, or messages", param="prompt")
        if "add_special_tokens" in given:
            row["add_special_tokens"] = bool(given["add_special_tokens"])
        row["chat"] = {name: given[name] for name in _CHAT_OPTIONS if name in given}
        strings = bool(given.get("return_token_strs"))
        return json_response(await services.engine.call("tokenize", row=row, strings=strings))

    async def detokenize(request: Request) -> Response:
        given = await _fields(request, services, ("tokens",))
        tokens = token_ids(given.get("tokens"), "tokens", MOST_TOKENS)
        return json_response(await services.engine.call("detokenize", tokens=tokens))

    async def info(request: Request) -> Response:
        return json_response(await services.engine.call("tokenizer_info"))

    async def metrics(request: Request) -> Response:
        return Response(services.engine.metrics_text(), media_type=CONTENT_TYPE)

    return [
        Route("/tokenize", tokenize, methods=["POST"]),
        Route("/detokenize", detokenize, methods=["POST"]),
        Route("/tokenizer_info", info, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
    ]


async def _fields(
    request: Request, services: Services, names: tuple[str, ...]
) -> Mapping[str, Any]:
    """The fields that are set, none of another name. `model` may be left out."""
    body = await read_json(request)
    if not isinstance(body, Mapping):
        raise bad("the body is a JSON object")
    given = {name: value for name, value in body.items() if value is not None}
    for name in given:
        if name not in names and name != "model":
            shown = name[:LONGEST_NAME]
            raise bad(f"there is no field {shown!r}; known: {', '.join(names)}", param=shown)
    if "model" in given:
        check_model(given["model"], services.settings.names)
    return given


def token_ids(value: Any, name: str, most: int) -> list[int]:
    """The ids that a field holds, 1 to `most` of them."""
    if not isinstance(value, list) or not all(type(one) is int for one in value):
        raise bad(f"{name} is a list of token ids, not {show(value)}", param=name)
    if not 0 < len(value) <= most:
        raise bad(f"{name} has 1 to {most:,} token ids, not {len(value):,}", param=name)
    return value
