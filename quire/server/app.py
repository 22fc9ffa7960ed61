"""The ASGI app: every route, and refusals in one shape."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp

from quire.anthropic_api.answers import MessageBody
from quire.jobs.store.journal import FULL
from quire.openai_api.errors import ApiError
from quire.openai_api.fields import (
    CHAT,
    CLASSIFY,
    COMPLETIONS,
    EMBEDDINGS,
    MESSAGES,
    POOLING,
    RERANKS,
    RESPONSES,
    SCORE,
    TABLE,
)
from quire.openai_api.shapes import (
    ChatCompletion,
    Classes,
    Embedding,
    LabelScores,
    PoolBody,
    Pooling,
    Ranks,
    ResponseBody,
    Score,
    TextCompletion,
)
from quire.server import (
    adapter_routes,
    audio_routes,
    batch_routes,
    generation,
    health,
    pooling_routes,
    tokens,
)
from quire.server.batch_service import BatchService
from quire.server.database import disk_full
from quire.server.endpoint import Endpoint, with_short_way
from quire.server.guard import Guard
from quire.server.openapi import PATH, description
from quire.server.reading import JSON_REFUSALS
from quire.server.replies import JSON, bug, error_response, json_response
from quire.server.route import EVENTS, ApiRoute
from quire.server.services import ROW_REFUSALS, Services

_WORDS = {405: "this path does not take that method"}
_SHAPES: dict[str, Any] = {
    CHAT: ChatCompletion,
    COMPLETIONS: TextCompletion,
    RESPONSES: ResponseBody,
    MESSAGES: MessageBody,
    EMBEDDINGS: PoolBody[Embedding],
    CLASSIFY: PoolBody[Classes],
    POOLING: PoolBody[Pooling],
    SCORE: (PoolBody[Score], LabelScores),
    **dict.fromkeys(RERANKS, Ranks),
}
_CODES = {404: "not_found", 405: "method_not_allowed"}


def make_app(services: Services, stored: BatchService) -> ASGIApp:
    """The app over these services. The caller starts their engine."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with batch_routes.running(services, stored):
            yield

    endpoints = {
        **generation.endpoints(services),
        **pooling_routes.endpoints(services),
    }
    routes = [
        *(_asking(path, endpoint) for path, endpoint in endpoints.items()),
        *health.routes(services),
        *tokens.routes(services),
        *audio_routes.routes(services, stored),
        *batch_routes.routes(services, stored),
        *adapter_routes.routes(services),
    ]

    async def described(request: Request) -> Response:
        names = services.names
        return json_response(description(routes, names, keys=bool(services.keys)))

    routes.append(ApiRoute("GET", PATH, described, shape=dict[str, Any]))
    app = Starlette(
        routes=routes,
        exception_handlers={
            ApiError: _refused,
            HTTPException: _not_routed,
            OSError: _no_room,
            Exception: _failed,
        },
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return Guard(with_short_way(app, endpoints), services.settings, services.keys)


def _asking(path: str, endpoint: Endpoint) -> ApiRoute:
    """A route whose body asks the model for something."""
    return ApiRoute(
        *("POST", path, endpoint),
        body=TABLE[path],
        refusals=JSON_REFUSALS | ROW_REFUSALS | {404},  # another model
        answers=(JSON, EVENTS) if "stream" in TABLE[path] else (JSON,),
        shape=_SHAPES[path],
        needs_model=path != SCORE,  # some clients send scores without a model
    )


async def _refused(request: Request, error: Exception) -> Response:
    if not isinstance(error, ApiError):
        raise error
    return error_response(error, request.scope)


async def _no_room(request: Request, error: Exception) -> Response:
    """507 for a full disk; any other OSError is a bug."""
    if not isinstance(error, OSError) or error.errno not in FULL:
        raise error
    return error_response(disk_full(), request.scope)


async def _not_routed(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    status = error.status_code
    words = _WORDS.get(status, "the request cannot be answered")
    if status == 404:
        words = f"there is nothing at this path{_instead(request.url.path)}"
    refusal = ApiError(status, words, code=_CODES.get(status))
    response = error_response(refusal, request.scope)
    if status == 405:
        response.headers["allow"] = ", ".join(sorted(_methods_at(request)))
    return response


def _methods_at(request: Request) -> set[str]:
    """The methods of all routes of a path: Starlette names only those of the first route."""
    return {
        method
        for route in request.app.routes
        if route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods
    }


_OPENAIS = "Set the client up for OpenAI's API, with an address up to /v1"
# Beginnings of paths of other servers, and of OpenAI's paths that are not built here.
_ELSEWHERE = {
    ("/api/",): f"this is not Ollama. {_OPENAIS}",
    ("/completion/", "/infill/", "/props/", "/slots/"): f"this is not llama.cpp. {_OPENAIS}",
    ("/generate/", "/generate_stream/"): f"this is not TGI or SGLang. {_OPENAIS}",
    ("/openai/",): f"addresses of Azure's are not built. {_OPENAIS}",
    ("/embed/", "/v1/embed/", "/v2/embed/"): "POST /v1/embeddings embeds, as OpenAI has it",
    ("/v1/realtime/",): "Realtime is not built. POST /v1/chat/completions streams",
    ("/v1/responses/input_tokens/",): "POST /tokenize counts tokens",
    ("/v1/responses/",): "responses are not stored",
    ("/v1/conversations/",): "conversations are not stored: send all of one each time",
    ("/v1/audio/speech/", "/v1/images/", "/v1/videos/"): "what is generated here is text",
}


def _instead(path: str) -> str:
    """Advice for a client of another server, or one whose address lacks its end."""
    for beginnings, words in _ELSEWHERE.items():
        if f"{path}/".startswith(beginnings):
            return f": {words}"
    if path.startswith("/v1/v1/"):
        return ": it has /v1 twice. Most clients want the address up to the first"
    if f"/v1{path}" in TABLE or path in ("/models", "/files", "/batches"):
        return f": it is /v1{path}. Most clients want the address with /v1 at its end"
    return ""


async def _failed(request: Request, error: Exception) -> Response:
    return error_response(bug(), request.scope)
