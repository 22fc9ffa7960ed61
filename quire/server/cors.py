"""What lets a page of another origin read our answers; whether it may is the guard's to say.

A browser asks first (OPTIONS, without a key) and then shows a page only answers that name its
origin, refusals as well: without that a page cannot tell a wrong key from a server that is gone.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import Response
from starlette.types import Scope

_METHODS = "GET, HEAD, POST, DELETE"
_ASKED_METHOD, _ASKED_HEADERS = "access-control-request-method", "access-control-request-headers"
_SECONDS = "600"  # that a browser need not ask again; Chrome takes two hours at most


def readable_by(origin: str) -> list[tuple[bytes, bytes]]:
    """Headers of any answer to a page of this origin."""
    return [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-expose-headers", b"x-request-id, request-id, retry-after"),
        (b"vary", b"origin"),
    ]


def is_preflight(scope: Scope, headers: Mapping[str, str]) -> bool:
    return scope["method"] == "OPTIONS" and _ASKED_METHOD in headers


def permission(headers: Mapping[str, str]) -> Response:
    """The answer to a preflight: whatever headers the page has, its origin is trusted with.

    They are named one by one, because `*` does not cover Authorization.
    """
    allowed = {"access-control-allow-methods": _METHODS, "access-control-max-age": _SECONDS}
    if _ASKED_HEADERS in headers:
        allowed["access-control-allow-headers"] = headers[_ASKED_HEADERS]
    return Response(status_code=204, headers=allowed)
