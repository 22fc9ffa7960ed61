"""HTTP connections with bounds: headers within a size, a number and a time. What uvicorn's own
protocol leaves open under httptools."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from quire.openai_api.errors import ApiError
from quire.server.limits import HEADER_SECONDS, MOST_HEADER_BYTES, MOST_HEADERS, MOST_LATE
from quire.server.replies import json_bytes

_REASONS = {400: b"Bad Request", 431: b"Request Header Fields Too Large"}


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._header_bytes = 0
        self._late_bytes = 0  # of a body that was answered before it was there
        self._in_headers = True  # those of the next request are being read
        self._impatience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_patience()
        super().connection_lost(exc)

    def _begin_headers(self) -> None:
        self._header_bytes, self._in_headers = 0, True
        self._end_patience()
        self._impatience = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def _end_patience(self) -> None:
        if self._impatience is not None:
            self._impatience.cancel()
            self._impatience = None

    def data_received(self, data: bytes) -> None:
        if self._in_headers:
            self._header_bytes += len(data)
        super().data_received(data)
        if self._in_headers and self._header_bytes > MOST_HEADER_BYTES:
            self._refuse(431, f"headers have at most {MOST_HEADER_BYTES:,} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._late_bytes = 0
        if not self._in_headers:  # a further request on a connection that is kept
            self._begin_headers()
        # For a reader that never reads: what it was sent is dropped with the connection.
        self.scope["quire.cut"] = self.transport.abort  # type: ignore[typeddict-unknown-key]

    def on_headers_complete(self) -> None:
        self._end_patience()
        self._in_headers = False
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if len(self.headers) > MOST_HEADERS or size > MOST_HEADER_BYTES:
            self._refuse(431, f"a request has at most {MOST_HEADERS} headers")
            return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self.transport.is_closing():
            return
        if self.cycle.response_complete:
            # Refused, and still sending: a while, since many read an answer only after that.
            self._late_bytes += len(body)
            if self._late_bytes > MOST_LATE:
                self.transport.abort()
                return
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.transport.is_closing():
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "this is not HTTP as the standard has it")

    def _refuse(self, status: int, why: str) -> None:
        """Answer and close; what else is on its way is not read."""
        if self.transport.is_closing():
            return
        body = json_bytes(ApiError(status, why, code="bad_http").body())
        head = b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\nconnection: close\r\n" % (
            status,
            _REASONS[status],
        )
        length = b"content-length: %d\r\n\r\n" % len(body)
        self.transport.write(head + length + body)
        self.transport.close()
