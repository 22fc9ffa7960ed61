"""Texts to tokens and back, scores of labels, and what a server for pooling models would have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.openai_api.asks import MOST_SAMPLES, Asked, Row, check_model
from quire.openai_api.errors import bad, not_supported
from quire.openai_api.fields import LONGEST_NAME
from quire.params.rules import show
from quire.server.answering import whole_outputs
from quire.server.generation import unless_gone
from quire.server.metrics import CONTENT_TYPE
from quire.server.reading import read_json
from quire.server.replies import json_response
from quire.server.services import Services, key_of

MOST_TOKENS, MOST_LABELS = 1 << 20, 128
_CHAT_OPTIONS = ("tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs")
_TOKENIZE = ("prompt", "messages", "add_special_tokens", "return_token_strs", *_CHAT_OPTIONS)
_SCORE = ("query", "items", "label_token_ids", "apply_softmax", "item_first")
_POOLING = ("/v1/embeddings", "/v1/rerank", "/rerank", "/v2/rerank", "/pooling", "/classify")


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
        tokens = _ids(given.get("tokens"), "tokens", MOST_TOKENS)
        return json_response(await services.engine.call("detokenize", tokens=tokens))

    async def info(request: Request) -> Response:
        return json_response(await services.engine.call("tokenizer_info"))

    async def score(request: Request) -> Response:
        return await _score(services, request)

    async def pooling(request: Request) -> Response:
        raise not_supported(f"{request.url.path} needs a pooling model, which is not built")

    async def metrics(request: Request) -> Response:
        return Response(services.engine.metrics_text(), media_type=CONTENT_TYPE)

    return [
        Route("/tokenize", tokenize, methods=["POST"]),
        Route("/detokenize", detokenize, methods=["POST"]),
        Route("/tokenizer_info", info, methods=["GET"]),
        Route("/v1/score", score, methods=["POST"]),
        Route("/metrics", metrics, methods=["GET"]),
        *(Route(path, pooling, methods=["POST"]) for path in _POOLING),
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


def _ids(value: Any, name: str, most: int) -> list[int]:
    if not isinstance(value, list) or not all(type(one) is int for one in value):
        raise bad(f"{name} is a list of token ids, not {show(value)}", param=name)
    if not 0 < len(value) <= most:
        raise bad(f"{name} has 1 to {most:,} token ids, not {len(value):,}", param=name)
    return value


async def _score(services: Services, request: Request) -> Response:
    """How likely each label is as the next token after each pair of query and item."""
    given = await _fields(request, services, _SCORE)
    query, items = given.get("query", ""), given.get("items")
    if not isinstance(query, str) or not isinstance(items, list):
        raise bad("query is text and items a list of texts", param="items")
    if not 0 < len(items) <= MOST_SAMPLES or not all(isinstance(one, str) for one in items):
        raise bad(f"items is a list of 1 to {MOST_SAMPLES} texts", param="items")
    labels = _ids(given.get("label_token_ids"), "label_token_ids", MOST_LABELS)
    params = {"max_tokens": 1, "temperature": 0, "logprob_token_ids": labels}
    is_first = bool(given.get("item_first"))
    rows = tuple(
        {"prompt": one + query if is_first else query + one, "params": params} for one in items
    )
    outputs = await unless_gone(
        request,
        whole_outputs(
            services, Asked("/v1/score", None, rows), lane="interactive", key_id=key_of(request)
        ),
    )
    scores, softmax = [], bool(given.get("apply_softmax"))
    for output in outputs:
        [place] = output.answers[0].logprobs or ()
        found = {token: logprob for token, _, logprob in place.top}
        scores.append(_chances([found[label] for label in labels], softmax))
    return json_response(
        {
            "object": "scoring",
            "model": services.settings.names[0],
            "scores": scores,
            "usage": {"prompt_tokens": sum(output.prompt_tokens for output in outputs)},
        }
    )


def _chances(logprobs: list[float], softmax: bool) -> list[float]:
    """Probabilities; among the labels alone with `softmax`."""
    top = max(logprobs) if softmax else 0.0
    weights = [math.exp(logprob - top) for logprob in logprobs]
    total = sum(weights) if softmax else 1.0
    return [weight / total for weight in weights]
