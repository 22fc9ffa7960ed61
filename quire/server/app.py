"""The ASGI app: every route, and refusals in one shape."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from quire.openai_api.errors import ApiError
from quire.openai_api.fields import TABLE
from quire.server import batch_routes, generation, health, pooling_routes, responses, tokens
from quire.server.endpoint import with_short_way
from quire.server.guard import Guard
from quire.server.replies import bug_response, error_response
from quire.server.services import Services

_WORDS = {405: "this path does not take that method"}
_CODES = {404: "not_found", 405: "method_not_allowed"}


def make_app(services: Services) -> ASGIApp:
    """All of it over these services, whose engine is started by whoever made it."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with batch_routes.running(services):
            yield

    endpoints = {
        **generation.endpoints(services),
        **responses.endpoints(services),
        **pooling_routes.endpoints(services),
    }
    app = Starlette(
        routes=[
            *(Route(path, endpoint, methods=["POST"]) for path, endpoint in endpoints.items()),
            *health.routes(services),
            *tokens.routes(services),
            *batch_routes.routes(services),
        ],
        exception_handlers={
            ApiError: _refused,
            HTTPException: _not_routed,
            Exception: _failed,
        },
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return Guard(with_short_way(app, endpoints), services.settings, services.keys)


async def _refused(request: Request, error: Exception) -> Response:
    if not isinstance(error, ApiError):
        raise error
    return error_response(error)


async def _not_routed(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    status = error.status_code
    words = _WORDS.get(status, "the request cannot be answered")
    if status == 404:
        words = f"there is nothing at this path{_instead(request.url.path)}"
    refusal = ApiError(status, words, code=_CODES.get(status))
    response = error_response(refusal)
    response.headers.update(error.headers or {})
    return response


def _instead(path: str) -> str:
    """What a client meant that was made for another server, or has the address without its end."""
    if path.startswith("/api/"):
        return ": this is not Ollama. Set the client up for OpenAI's API, with an address up to /v1"
    if path.startswith("/v1/messages"):
        return ": Anthropic's API is not built. POST /v1/chat/completions has chats"
    if path.startswith("/v1/responses/"):
        return ": responses are not stored"
    if path.startswith("/v1/v1/"):
        return ": it has /v1 twice. Most clients want the address up to the first"
    if f"/v1{path}" in TABLE or path in ("/models", "/files", "/batches"):
        return f": it is /v1{path}. Most clients want the address with /v1 at its end"
    return ""


async def _failed(request: Request, error: Exception) -> Response:
    return bug_response()
