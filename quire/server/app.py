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
from quire.server import batch_routes, generation, health, pooling_routes, responses, tokens
from quire.server.endpoint import with_short_way
from quire.server.guard import Guard
from quire.server.replies import bug_response, error_response
from quire.server.services import Services

_WORDS = {404: "there is nothing at this path", 405: "this path does not take that method"}
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
    refusal = ApiError(
        status, _WORDS.get(status, "the request cannot be answered"), code=_CODES.get(status)
    )
    response = error_response(refusal)
    response.headers.update(error.headers or {})
    return response


async def _failed(request: Request, error: Exception) -> Response:
    return bug_response()
