"""Answers of routes: JSON by msgspec, and errors in the form of the client's API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Scope

from quire.openai_api.errors import ApiError, server_error
from quire.server.dialects import refusal

_encode = msgspec.json.Encoder().encode
JSON = "application/json"


def json_bytes(value: Any) -> bytes:
    return _encode(value)


def json_response(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(_encode(value), status, headers=headers, media_type=JSON)


def error_response(error: ApiError, scope: Scope) -> Response:
    status, body = refusal(error, scope)
    return json_response(body, status, dict(error.headers))


def bug() -> ApiError:
    """The answer to a bug. Its text may have a prompt or a path, so the caller does not get it.
    uvicorn closes the connection after it; the header says so, lest the next request be lost."""
    made = server_error("the server failed on this request", code="internal_error")
    made.headers = (*made.headers, ("connection", "close"))
    return made
