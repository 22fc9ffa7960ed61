"""A shorter way to the handlers of requests that may wait long.

For each request Starlette's routes and exception handlers keep frames, closures and a larger scope
until it is answered. With thousands of waiting requests that is a third of their memory.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from quire.openai_api.errors import ApiError
from quire.server.replies import bug, error_response

ANSWERED = "quire.answered"  # key in the scope; set when an answer has begun


class Endpoint:
    """A handler as an ASGI app of its own, which also answers refusals and bugs."""

    def __init__(self, handle: Callable[[Request], Awaitable[Any]]) -> None:
        self._handle = handle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await self._handle(Request(scope, receive, send))
            await response(scope, receive, send)
        except ApiError as error:
            if ANSWERED in scope:
                raise
            await error_response(error, scope)(scope, receive, send)
        except Exception:
            if ANSWERED not in scope:
                await error_response(bug(), scope)(scope, receive, send)
            raise  # uvicorn logs it


def with_short_way(app: ASGIApp, endpoints: Mapping[str, Endpoint]) -> ASGIApp:
    """The app, with POST requests to these paths sent directly to their endpoints."""

    def call(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        found = endpoints.get(scope["path"]) if is_post else None
        return (found or app)(scope, receive, send)

    return call
