"""HTTP connections with limits for the size, number and time of headers, and a close that loses no
answer. uvicorn's own protocol on httptools has neither.

A request may be refused while it is still being sent. To close the connection then would reset it,
and the refusal could be lost. So the connection is half closed, and further bytes are thrown away
until the client has read its answer and left, or has sent too much or for too long.
"""

from __future__ import annotations

import asyncio
import socket
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from quire.openai_api.errors import ApiError
from quire.server.limits import (
    HEADER_SECONDS,
    LATE_SECONDS,
    LOOK_SECONDS,
    MOST_EMPTY_BYTES,
    MOST_HEADER_BYTES,
    MOST_HEADERS,
    MOST_LATE,
)
from quire.server.replies import json_bytes

_REASONS = {400: b"Bad Request", 431: b"Request Header Fields Too Large"}
PROTOCOL_REFUSALS = frozenset(_REASONS)
_PIECE = MOST_EMPTY_BYTES // 4  # bytes that are parsed at once where headers or chunks are read
_GO_ON = b"HTTP/1.1 100 Continue\r\n\r\n"

_TOO_LONG = f"a request has at most {MOST_HEADERS} headers, and {MOST_HEADER_BYTES:,} bytes of them"


class BoundedProtocol(HttpToolsProtocol):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._header_bytes = 0
        self._in_headers = True  # the headers of the next request are being read
        self._is_chunked = False  # the body of the present request
        self._empty_bytes = 0  # bytes since a request or a chunk of its body began or ended
        self._stays_open = False  # whether the connection stays open after the present request
        self._is_late = False  # the last answer is given; further bytes are thrown away
        self._late_bytes = 0
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_patience()
        super().connection_lost(exc)
        self.cycle = None  # type: ignore[assignment]  # see _AnswerTransport

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more: it has left, or it has sent its request and still reads. To
        find out, `100 Continue` is written, which every client ignores: only a client that has left
        resets the connection. HTTP/1.0 has no such line, so its client is taken to have left."""
        cycle = self.cycle
        is_whole = cycle is not None and not (cycle.more_body or cycle.response_complete)
        if not is_whole or self.is_over or cycle.scope["http_version"] == "1.0":
            return False
        self._stays_open = cycle.keep_alive = False
        if not self.pipeline and not cycle.response_started:
            self.transport.write(_GO_ON)
        self._look_whether_gone(LOOK_SECONDS)
        return True

    def _look_whether_gone(self, seconds: float) -> None:
        if self.transport.is_closing():
            return
        read_from: socket.socket = self.transport.get_extra_info("socket")
        if read_from.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
            return
        later = min(2 * seconds, 1.0)
        self._patience = self.loop.call_later(seconds, self._look_whether_gone, later)

    def _begin_headers(self) -> None:
        self._header_bytes, self._in_headers = 0, True
        self._cut_after(HEADER_SECONDS)

    def _cut_after(self, seconds: float) -> None:
        self._end_patience()
        self._patience = self.loop.call_later(seconds, self.transport.abort)

    def _end_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def data_received(self, data: bytes) -> None:
        if self._is_late:
            self._late_bytes += len(data)
            if self._late_bytes > MOST_LATE:
                self.transport.abort()
            return
        self._unset_keepalive_if_required()
        # In pieces, so that what lies between two chunks is counted though both are in one read.
        step = _PIECE if self._in_headers or self._is_chunked else len(data)
        for at in range(0, len(data), step):
            self._take(data[at : at + step])

    def _take(self, data: bytes) -> None:
        if self._in_headers:
            self._header_bytes += len(data)
        self._empty_bytes += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self._refuse(400, "this is not HTTP as the standard has it")
        headers = self._header_bytes if self._in_headers else 0
        if headers > MOST_HEADER_BYTES or self._empty_bytes > MOST_EMPTY_BYTES:
            self._refuse(431, _TOO_LONG)

    def _feed(self, data: bytes) -> None:
        """Parse the data. A client may offer another protocol (Java's offers HTTP/2 in its first
        request). The server may ignore that, but the parser then takes the body for the other
        protocol, so the request is parsed again without the offer."""
        while not self.is_over:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as stopped:
                method, version = self.parser.get_method(), self.parser.get_http_version()
                start = b"%s %s HTTP/%s\r\n" % (method, self.url, version.encode())
                lines = [b"%s: %s\r\n" % header for header in _without_offer(self.headers)]
                data = b"".join([start, *lines, b"\r\n", data[stopped.args[0] :]])
                self.parser = httptools.HttpRequestParser(self)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._empty_bytes = 0
        if not self._in_headers:  # a further request on an open connection
            self._begin_headers()
        # Closes at once, for a client that does not read; unread data is dropped.
        self.scope["quire.cut"] = self.transport.abort  # type: ignore[typeddict-unknown-key]

    def on_header(self, name: bytes, value: bytes) -> None:
        """Ignore trailers after a chunked body: they would count as headers that were checked."""
        if self._in_headers:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.is_over:
            return
        if self.parser.get_method() == b"CONNECT":  # cannot be ignored as an offer can
            self._refuse(400, "this is no proxy; nothing is connected to")
            return
        if self.parser.should_upgrade():
            return  # it is parsed again without the offer
        self._end_patience()
        self._in_headers = False
        self._is_chunked = any(name == b"transfer-encoding" for name, _ in self.headers)
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if len(self.headers) > MOST_HEADERS or size > MOST_HEADER_BYTES:
            self._refuse(431, _TOO_LONG)
            return
        if why := _not_ours(self.url, self.headers):
            self._refuse(400, why)
            return
        super().on_headers_complete()
        cycle = self.cycle
        cycle.transport = _AnswerTransport(self, cycle)
        if self.parser.get_http_version() == "1.0":
            _without_chunks(cycle)
        # If an answer begins before the whole request is there, the connection is closed after it.
        self._stays_open, cycle.keep_alive = cycle.keep_alive, False

    def on_body(self, body: bytes) -> None:
        self._empty_bytes = 0
        if not self.is_over:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._empty_bytes = 0
        if self.is_over or self._in_headers:
            return
        if not self.cycle.response_started:
            self.cycle.keep_alive = self._stays_open
        super().on_message_complete()

    def shutdown(self) -> None:
        self._stays_open = False
        if not self._is_late:  # otherwise it closes soon by itself
            super().shutdown()

    @property
    def is_over(self) -> bool:
        """Whether further bytes are ignored."""
        return self._is_late or self.transport.is_closing()

    def close_late(self) -> None:
        """Close when the client has read its answer, though it still sends."""
        if self.is_over:
            return
        self._is_late = True
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # a handler that waits for the rest of the body ends
            self.cycle.message_event.set()
        self.flow.resume_reading()
        self.transport.write_eof()
        self._cut_after(LATE_SECONDS)

    def _refuse(self, status: int, why: str) -> None:
        """Answer with an error and close; further bytes are ignored."""
        if self.is_over:
            return
        cycle = self.cycle
        if cycle is not None and cycle.response_started and not cycle.response_complete:
            self.transport.abort()  # an error cannot be sent in the middle of an answer
            return
        body = json_bytes(ApiError(status, why, code="bad_http").body())
        head = b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\nconnection: close\r\n" % (
            status,
            _REASONS[status],
        )
        length = b"content-length: %d\r\n\r\n" % len(body)
        self.transport.write(head + length + body)
        self.close_late()


def _without_offer(headers: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """The headers without the offer of another protocol."""
    for name, value in headers:
        if name == b"connection":
            words = [word.strip() for word in value.split(b",")]
            value = b", ".join(w for w in words if w.lower() not in (b"upgrade", b"http2-settings"))
        if name not in (b"upgrade", b"http2-settings"):
            yield name, value


def _not_ours(url: bytes, headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Why a request is not for this server, or cannot be read; "" if it can."""
    said: dict[bytes, bytes] = {}
    for name, value in headers:
        said[name] = b", ".join([said[name], value]) if name in said else value
    coding = said.get(b"transfer-encoding", b"chunked")
    if coding.strip().lower() != b"chunked":
        return "of the transfer codings chunked alone is read"
    # A host in the request line overrides the header Host, which the guard checks.
    whole = (b"http://%s/" % said.get(b"host", b""), b"https://%s/" % said.get(b"host", b""))
    if not url.startswith((b"/", b"*")) and not url.lower().startswith(
        tuple(one.lower() for one in whole)
    ):
        return "the request line names another host than the header Host; a path is enough"
    return ""


def _without_chunks(cycle: RequestResponseCycle) -> None:
    """Make the cycle answer HTTP/1.0, which has no chunks: a body of unknown length ends with the
    connection, and uvicorn is given the length of each piece instead of the whole."""
    send = cycle.send

    async def send_plain(message: Any) -> None:
        if message["type"] == "http.response.start":
            if all(name.lower() != b"content-length" for name, _ in message["headers"]):
                cycle.chunked_encoding = cycle.keep_alive = False
        elif cycle.response_started and not cycle.expected_content_length:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.send = send_plain  # type: ignore[method-assign]


class _AnswerTransport(asyncio.Transport):
    """The connection to which one answer writes. The answer refers to this object, which has only a
    weak reference to the answer: cycles would wait for a full garbage collection, which is rare."""

    def __init__(self, protocol: BoundedProtocol, cycle: RequestResponseCycle) -> None:
        super().__init__()
        self._protocol, self._cycle = protocol, weakref.ref(cycle)

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if not self._protocol.is_over:  # a later request may have been refused and closed it
            self._protocol.transport.write(data)

    def is_closing(self) -> bool:
        return self._protocol.transport.is_closing()

    def close(self) -> None:
        cycle = self._cycle()
        if cycle is not None and cycle.more_body:
            self._protocol.close_late()
        else:
            self._protocol.transport.close()
