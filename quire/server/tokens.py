"""Routes for texts to tokens and back, and for the number of tokens of a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from quire.anthropic_api.answers import CountedTokens
from quire.anthropic_api.messages import COUNTED, read_counted
from quire.openai_api.asks import Row, check_model
from quire.openai_api.errors import ApiError, bad
from quire.openai_api.field import Body, checked_fields, plain_body
from quire.openai_api.fields import MESSAGES
from quire.params.rules import show
from quire.server.reading import JSON_REFUSALS, read_json
from quire.server.replies import json_response
from quire.server.route import ApiRoute
from quire.server.services import CALL_REFUSALS, Services
from quire.server.wire import Detokenized, Tokenized, TokenizerInfo

MOST_TOKENS = 1 << 20
_CHAT_OPTIONS = ("tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs")
_REFUSALS = JSON_REFUSALS | CALL_REFUSALS | {404}  # another model
_MODEL = ("model", "text", "One of the served names; may be left out.")
_TOKENIZE = plain_body(
    [],
    [
        _MODEL,
        ("prompt", "text", "This, or messages."),
        ("messages", "a list", "As a chat has them."),
        ("add_special_tokens", "true or false", ""),
        ("return_token_strs", "true or false", "The text of each token, too."),
        ("tools", "a list", "As a chat has them."),
        ("add_generation_prompt", "true or false", ""),
        ("continue_final_message", "true or false", ""),
        ("chat_template_kwargs", "an object", "Variables for the chat template."),
    ],
)
_DETOKENIZE = plain_body([("tokens", "a list", "Their ids.")], [_MODEL])


def routes(services: Services) -> list[ApiRoute]:
    async def tokenize(request: Request) -> Response:
        given = await _fields(request, services, _TOKENIZE)
        row: Row = {name: given[name] for name in ("prompt", "messages") if name in given}
        if len(row) != 1:
            raise bad("the body has either a prompt or messages", param="prompt")
        if "add_special_tokens" in given:
            row["add_special_tokens"] = given["add_special_tokens"]
        row["chat"] = {name: given[name] for name in _CHAT_OPTIONS if name in given}
        strings = bool(given.get("return_token_strs"))
        return json_response(await services.engine.call("tokenize", row=row, strings=strings))

    async def detokenize(request: Request) -> Response:
        given = await _fields(request, services, _DETOKENIZE)
        tokens = token_ids(given["tokens"], "tokens", MOST_TOKENS, least=0)
        return json_response(await services.engine.call("detokenize", tokens=tokens))

    async def info(request: Request) -> Response:
        return json_response(await services.engine.call("tokenizer_info"))

    async def count(request: Request) -> Response:
        row, fields = read_counted(await read_json(request), services.names)
        try:
            found = await services.engine.call("tokenize", row=row, strings=False)
        except ApiError as error:
            raise error.named(fields) from None
        counted: CountedTokens = {"input_tokens": found["count"]}
        return json_response(counted)

    return [
        ApiRoute(
            *("POST", "/tokenize", tokenize), body=_TOKENIZE, refusals=_REFUSALS, shape=Tokenized
        ),
        ApiRoute(
            *("POST", "/detokenize", detokenize),
            body=_DETOKENIZE,
            refusals=_REFUSALS,
            shape=Detokenized,
        ),
        ApiRoute("GET", "/tokenizer_info", info, refusals=CALL_REFUSALS, shape=TokenizerInfo),
        ApiRoute(
            *("POST", f"{MESSAGES}/count_tokens", count),
            body=COUNTED,
            refusals=_REFUSALS,
            shape=CountedTokens,
            needs_model=True,
        ),
    ]


async def _fields(request: Request, services: Services, known: Body) -> Mapping[str, Any]:
    """The fields that are set; a field of another name is refused."""
    given = checked_fields(known, await read_json(request))
    if "model" in given:
        check_model(given["model"], services.names)
    return given


def token_ids(value: Any, name: str, most: int, *, least: int = 1) -> list[int]:
    """The token ids in a field, `least` to `most` of them."""
    if not isinstance(value, list) or not all(type(one) is int for one in value):
        raise bad(f"{name} is a list of token ids, not {show(value)}", param=name)
    if not least <= len(value) <= most:
        raise bad(f"{name} has {least} to {most:,} token ids, not {len(value):,}", param=name)
    return value
