"""Requests that may wait long, and the short way to what answers them.

Starlette's routes and catchers of exceptions keep some frames, closures and a larger scope for each
request until it is answered: a third of all that one takes, with thousands that wait.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from quire.openai_api.errors import ApiError
from quire.server.replies import bug, error_response

ANSWERED = "quire.answered"  # in the scope, once an answer has begun


class Endpoint:
    """A handler of requests as an app of its own: answers, refusals, and what is said of bugs."""

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
            raise  # uvicorn writes it down


def with_short_way(app: ASGIApp, endpoints: Mapping[str, Endpoint]) -> ASGIApp:
    """The app, but a POST to one of these paths goes to its endpoint at once."""

    def call(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        found = endpoints.get(scope["path"]) if is_post else None
        return (found or app)(scope, receive, send)

    return call
