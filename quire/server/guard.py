"""Checks before every route: paths, Host and Origin, keys. Plain ASGI; no body is parsed yet.

A page of a foreign site can make a browser on this machine call the server. Such a request has the
site's Origin, or the site's name as Host. Names are checked; numeric addresses are always allowed.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
from collections.abc import Awaitable, Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.openai_api.errors import ApiError, not_found
from quire.server.cors import is_preflight, permission, readable_by
from quire.server.dialects import is_anthropic
from quire.server.endpoint import ANSWERED
from quire.server.keys import Keys
from quire.server.replies import error_response
from quire.server.services import LOCAL, Settings

# Paths that need no key: health checks, and the page with its parts, which holds no data itself.
OPEN = ("/health", "/live", "/")
OPEN_FOLDERS = ("/page/", "/download/")
_BEARER = "bearer "


def is_open(path: str) -> bool:
    return path in OPEN or path.startswith(OPEN_FOLDERS)


class Guard:
    """Passes a request on with the id of its key, or refuses it."""

    def __init__(self, app: ASGIApp, settings: Settings, keys: Keys) -> None:
        self._app, self._keys = app, keys
        self._hosts = {"localhost", settings.host.lower(), *map(str.lower, settings.allowed_hosts)}
        self._origins = frozenset(settings.allowed_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        # Made here: an id from the caller could forge lines of a log.
        request_id = f"req_{secrets.token_hex(12)}"
        scope["quire.request_id"] = request_id
        headers = _first_of_each(scope["headers"])
        origin = headers.get("origin")
        added = [(b"x-request-id", request_id.encode())]
        if is_anthropic(scope):
            added.append((b"request-id", request_id.encode()))
        if origin in self._origins:
            added += readable_by(origin)

        def send_named(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                scope[ANSWERED] = True
                message["headers"] = [*message.get("headers", ()), *added]
            return send(message)

        app = self._app
        try:
            self._check(scope, headers)
            if origin in self._origins and is_preflight(scope, headers):
                app = permission(headers)
            else:
                scope["quire.key_id"] = self._key_id(scope["path"], headers)
        except ApiError as error:
            app = error_response(error, scope)
        await app(scope, receive, send_named)

    def _check(self, scope: Scope, headers: dict[str, str]) -> None:
        """Raises ApiError for a request that is refused with any key."""
        path = scope["path"]
        if scope["type"] != "http" or not _is_plain(path):
            hint = ": none here ends with a slash" if path.endswith("/") else ""
            raise not_found(f"there is nothing at this path{hint}")
        self._check_names(headers, scope["http_version"])

    def _key_id(self, path: str, headers: dict[str, str]) -> str:
        """The id of the caller's key; raises ApiError for a missing or wrong key."""
        if not self._keys or is_open(path):
            return LOCAL
        found = self._keys.id_of(_shown_key(headers))
        if found is None:
            raise ApiError(
                401,
                "no valid API key was shown; send Authorization: Bearer KEY, or x-api-key: KEY, "
                "with the key that quire serve printed",
                code="invalid_api_key",
                headers=(("www-authenticate", "Bearer"),),
            )
        return found

    def _check_names(self, headers: dict[str, str], version: str) -> None:
        host = headers.get("host", "")
        name = _host_name(host)
        # HTTP/1.0 needs no Host, and health checks of proxies send none; every browser sends one.
        is_without = "host" not in headers and version == "1.0"
        if not is_without and name not in self._hosts and not _is_address(name):
            raise _foreign("Host", "--allowed-host")
        origin = headers.get("origin")
        own = {f"http://{host}".lower(), f"https://{host}".lower()}
        if origin is not None and origin.lower() not in own and origin not in self._origins:
            raise _foreign("Origin", "--allowed-origin")


def _foreign(header: str, option: str) -> ApiError:
    return ApiError(
        403,
        f"the {header} of this request is not one that this server answers; {option} adds one",
        code="foreign_origin",
    )


def _first_of_each(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """The first header of each name; two Hosts are joined, so that both are checked."""
    found: dict[str, str] = {}
    for name, value in headers:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        found[key] = f"{found[key]},{text}" if key in found else text
    return found


def _shown_key(headers: dict[str, str]) -> str:
    """The key in the header of OpenAI's clients, or in those of Azure's and Anthropic's."""
    shown = headers.get("authorization", "")
    if shown.lower().startswith(_BEARER):
        return shown[len(_BEARER) :].strip()
    return headers.get("api-key") or headers.get("x-api-key", "")


def _host_name(host: str) -> str:
    """The host without its port: "[::1]:80" -> "::1"; "" if the rest is not a port."""
    found = re.fullmatch(r"\[(.*)\]|([^:]*)", re.sub(":[0-9]*$", "", host))
    return "" if found is None else (found[1] or found[2] or "").lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_plain(path: str) -> bool:
    """Whether a path is in plain form: no empty part, no "..", no invisible character."""
    steps = path[1:].split("/")
    return (
        path.startswith("/")
        and path.isprintable()
        and "\\" not in path
        and not any(step in (".", "..") or (not step and path != "/") for step in steps)
    )
