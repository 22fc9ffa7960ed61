"""Media named by a URL: base64 in the URL itself, a file below the folder that was allowed, or a
host that was allowed. One parser, one fetcher."""

from __future__ import annotations

import base64
import binascii
import http.client
import ipaddress
import socket
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from quire.errors import InvalidPrompt
from quire.inputs.media.files import allowed_file

SECONDS = 30.0
_PIECE = 1 << 16


@dataclass(frozen=True, slots=True)
class MediaUrl:
    """As a message wrote it."""

    url: str

    def read(self, folder: str | None, hosts: tuple[str, ...], most: int) -> bytes | Path:
        """The bytes it stands for, or the file."""
        if self.url.startswith("data:"):
            return _inline(self.url, most)
        try:
            parts = urlsplit(self.url)
        except ValueError as error:
            raise _refused(self.url, f"is no URL: {error}") from None
        if parts.scheme == "file":
            if parts.netloc not in ("", "localhost"):
                raise _refused(self.url, "names a file of another machine")
            return allowed_file(unquote(parts.path), folder)
        if parts.scheme in ("http", "https"):
            return _fetched(self.url, parts, hosts, most)
        raise _refused(self.url, "is neither data:, file: nor http(s):")


def _inline(url: str, most: int) -> bytes:
    head, comma, data = url.partition(",")
    if not comma or not head.endswith(";base64"):
        raise _refused(url, "holds no base64: it should be data:image/png;base64,...")
    if len(data) > most // 3 * 4 + 4:
        raise _refused(url, f"holds more than {most:,} bytes")
    try:
        return base64.b64decode("".join(data.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise _refused(url, f"is no base64: {error}") from None


def _fetched(url: str, parts: SplitResult, hosts: tuple[str, ...], most: int) -> bytes:
    host = (parts.hostname or "").rstrip(".").lower()
    if host not in {one.lower() for one in hosts}:
        raise _refused(url, f"is of the host {host!r}, which allowed_media_domains does not name")
    if parts.username is not None or parts.password is not None:
        raise _refused(url, "holds a name or a password")
    deadline = time.monotonic() + SECONDS
    try:
        return _get(parts, host, most, deadline)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _refused(url, f"could not be fetched: {type(error).__name__}: {error}") from None


def _get(parts: SplitResult, host: str, most: int, deadline: float) -> bytes:
    """One request to an address that was judged; nothing is followed."""
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    plain = socket.create_connection((_public_address(host, port), port), timeout=SECONDS / 3)
    with plain:
        sock = plain
        if secure:
            sock = ssl.create_default_context().wrap_socket(plain, server_hostname=host)
        connection = http.client.HTTPConnection(host, port, timeout=SECONDS / 3)
        connection.sock = sock
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", path, headers={"Host": parts.netloc, "Accept": "image/*"})
        response = connection.getresponse()
        if response.status != 200:
            raise ValueError(f"the answer is {response.status}; redirects are not followed")
        data = bytearray()
        while piece := response.read(_PIECE):
            data += piece
            if len(data) > most:
                raise ValueError(f"more than {most:,} bytes")
            if time.monotonic() > deadline:
                raise ValueError(f"it took more than {SECONDS:.0f} s")
        return bytes(data)


def _public_address(host: str, port: int) -> str:
    """An address of the host; none of them may be private."""
    found = [str(one[4][0]) for one in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    for address in found:
        if not ipaddress.ip_address(address).is_global:
            raise ValueError(f"{address} is not a public address")
    return found[0]


def _refused(url: str, why: str) -> InvalidPrompt:
    shown = url if len(url) <= 80 else f"{url[:60]}..."
    return InvalidPrompt(f"the URL {shown!r} {why}", parameter="messages")
