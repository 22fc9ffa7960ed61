"""The only place that opens URLs for media: one request, to a public address of an allowed host."""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any
from urllib.parse import SplitResult, quote

from quire.inputs.media.allowed import Fetching

SECONDS = 30.0  # for one answer
_PORTS = {"http": 80, "https": 443}
_WRITTEN = "%/:?#[]@!$&'()*+,;=~"  # characters that are not percent-encoded
_PIECE = 1 << 16
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def fetched(parts: SplitResult, fetching: Fetching) -> bytes:
    """The bytes at a URL of an allowed host. A ValueError says why they could not be read."""
    host, port = (parts.hostname or "").rstrip(".").lower(), _port(parts)
    named = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    wanted = {named, host} if port == _PORTS[parts.scheme] else {named}
    if wanted.isdisjoint(one.lower() for one in fetching.hosts):
        where = host if host in wanted else named
        raise ValueError(f"is of the host {where!r}, which allowed_media_domains does not name")
    if parts.username is not None or parts.password is not None:
        raise ValueError("holds a name or a password")
    seconds = max(0.0, min(SECONDS, fetching.deadline - time.monotonic()))
    deadline = time.monotonic() + seconds
    try:
        address = (_public_address(host, port, seconds), port)
        with socket.create_connection(address, timeout=max(seconds / 3, 0.001)) as plain:
            data = _within(deadline, plain, parts, host, fetching.bytes_left)
    except (OSError, http.client.HTTPException, ValueError) as error:
        why = f"it took more than {seconds:.0f} s" if time.monotonic() >= deadline else str(error)
        raise ValueError(f"could not be fetched: {type(error).__name__}: {why}") from None
    fetching.bytes_left -= len(data)
    return data


def _port(parts: SplitResult) -> int:
    try:
        return parts.port or _PORTS[parts.scheme]
    except ValueError as error:
        raise ValueError(f"could not be fetched: {error}") from None


def _within(
    deadline: float, plain: socket.socket, parts: SplitResult, host: str, most: int
) -> bytes:
    """One request over the connection, which is shut down at the deadline. A socket's timeout
    starts again with every byte, so a slow server could otherwise block for days."""
    copy = plain.dup()  # TLS takes over the socket; the copy can always be shut down
    alarm = threading.Timer(max(0.0, deadline - time.monotonic()), _cut, (copy,))
    alarm.daemon = True
    alarm.start()
    try:
        data = _get(plain, parts, host, most)
    finally:
        alarm.cancel()
        copy.close()
    if time.monotonic() >= deadline:
        raise ValueError("cut")
    return data


def _cut(connection: socket.socket) -> None:
    with suppress(OSError):  # the connection may have ended already
        connection.shutdown(socket.SHUT_RDWR)


def _get(plain: socket.socket, parts: SplitResult, host: str, most: int) -> bytes:
    """The body of one answer; redirects are not followed."""
    connection = http.client.HTTPConnection(host)
    if parts.scheme == "https":
        plain = ssl.create_default_context().wrap_socket(plain, server_hostname=host)
    with plain:
        connection.sock = plain
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", quote(path, _WRITTEN), headers={"Host": parts.netloc})
        response = connection.getresponse()
        if response.status != 200:
            raise ValueError(f"the answer is {response.status}; redirects are not followed")
        too_many = f"more than {most:,} bytes, all that its prompt has left"
        if (response.length or 0) > most:  # by its Content-Length
            raise ValueError(too_many)
        data = bytearray()
        while piece := response.read1(_PIECE):
            data += piece
            if len(data) > most:
                raise ValueError(too_many)
        if response.length:  # the bytes of the Content-Length that did not come
            raise ValueError(f"it ended {response.length:,} bytes early")
        return bytes(data)


def _public_address(host: str, port: int, seconds: float) -> str:
    """An address of the host. ValueError if any of its addresses is not public."""
    found = [str(one[4][0]) for one in _resolved(host, port, seconds)]
    for address in found:
        if not _is_public(ipaddress.ip_address(address)):
            raise ValueError(f"{address} is not a public address")
    return found[0]


def _resolved(host: str, port: int, seconds: float) -> list[Any]:
    """The addresses from the resolver. It cannot be interrupted, so its thread is abandoned at the
    deadline."""
    answers: SimpleQueue[list[Any] | Exception] = SimpleQueue()

    def ask() -> None:
        try:
            answers.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, ValueError) as error:  # ValueError: not a valid host name
            answers.put(error)

    threading.Thread(target=ask, name="quire-resolve", daemon=True).start()
    try:
        found = answers.get(timeout=seconds)
    except Empty:
        raise TimeoutError("no answer from the resolver") from None
    if isinstance(found, Exception):
        raise found
    return found


def _is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether an address is public, and the IPv4 address in it, to which gateways may lead."""
    if not address.is_global or address.is_multicast:
        return False
    if isinstance(address, ipaddress.IPv4Address):
        return True
    inner = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address in _NAT64:
        inner.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return all(one is None or _is_public(one) for one in inner)
