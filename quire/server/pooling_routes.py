"""Routes that answer numbers and no text: embeddings, ranks, scores, classes."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from quire.openai_api.asks import check_model, name_model, read_fields
from quire.openai_api.fields import (
    CLASSIFY,
    EMBEDDINGS,
    POOLING,
    POOLING_PATHS,
    RERANKS,
    SCORE,
)
from quire.openai_api.pooling import check_task, pooling_body, read_pooling_body
from quire.server.endpoint import Endpoint
from quire.server.generation import number_of, outputs_of
from quire.server.label_scores import label_scores_body, read_label_scores
from quire.server.reading import read_json
from quire.server.replies import json_response
from quire.server.services import Services

_PREFIX = {EMBEDDINGS: "embd", CLASSIFY: "classify", POOLING: "pool", SCORE: "score"}
_PREFIX |= dict.fromkeys(RERANKS, "rerank")
_PAIR_FIELDS = {"text_1", "text_2"}


def endpoints(services: Services) -> dict[str, Endpoint]:
    return {path: Endpoint(_handler(services, path)) for path in POOLING_PATHS}


def _handler(services: Services, endpoint: str) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        body = await read_json(request)
        if endpoint == SCORE and not (isinstance(body, dict) and _PAIR_FIELDS & body.keys()):
            return await _score_labels(services, request, body)
        return await _pool(services, request, endpoint, body)

    return handle


async def _pool(services: Services, request: Request, endpoint: str, body: Any) -> Response:
    engine, names = services.engine, services.names
    await engine.ready()  # how a body is read depends on what the model can do
    asked = read_pooling_body(endpoint, body, names, engine.facts.get("tasks", ()))
    outputs = await outputs_of(services, request, asked)
    return json_response(
        pooling_body(
            asked,
            outputs,
            id=f"{_PREFIX[endpoint]}-{number_of(request)}",
            created=int(time.time()),
            model=asked.model or names[0],
            labels=engine.facts.get("labels", ()),
        )
    )


async def _score_labels(services: Services, request: Request, body: Any) -> Response:
    given, names = read_fields(SCORE, body, None), services.names
    if "model" in given:  # the field is optional, as in the original service
        check_model(given["model"], names)
    check_task("generate", services.engine.facts.get("tasks", ()))
    asked = read_label_scores(given)
    name_model(asked.rows, given.get("model"), names)
    outputs = await outputs_of(services, request, asked)
    return json_response(label_scores_body(given, outputs, model=given.get("model") or names[0]))
