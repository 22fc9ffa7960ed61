"""Headers that let a page of another origin read our answers; the guard decides which pages may.

A browser first sends OPTIONS, without a key. Then it gives a page only answers that name the page's
origin. Refusals name it too, since otherwise a page could not tell a wrong key from a dead server.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import Response
from starlette.types import Scope

_METHODS = "GET, HEAD, POST, DELETE"
_ASKED_METHOD, _ASKED_HEADERS = "access-control-request-method", "access-control-request-headers"
_SECONDS = "600"  # for which a browser may remember the permission


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
    """The answer to a preflight: all headers that the page asks for are allowed.

    They are named one by one, because `*` does not cover Authorization.
    """
    allowed = {"access-control-allow-methods": _METHODS, "access-control-max-age": _SECONDS}
    if _ASKED_HEADERS in headers:
        allowed["access-control-allow-headers"] = headers[_ASKED_HEADERS]
    return Response(status_code=204, headers=allowed)
