"""Server-sent events: pieces sent as they come, until the last, a failure, or a reader that left.

A stream that ends without `[DONE]` looks complete to a client, so a failure is an event of its
own. While nothing comes for long, comments do. A reader that leaves gives its rows up; one that
never reads is cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from starlette.types import Receive, Scope, Send

from quire.openai_api.errors import ApiError, server_error
from quire.server.limits import PING_SECONDS, SLOW_READER_SECONDS
from quire.server.replies import error_response, json_bytes

DONE = b"data: [DONE]\n\n"
PING = b": ping\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def event_of(data: Any, name: str = "") -> bytes:
    """One event; clients that go by `name` get it too."""
    named = f"event: {name}\n".encode() if name else b""
    return named + b"data: " + json_bytes(data) + b"\n\n"


class EventResponse:
    """An ASGI response of the events that an iterator yields, and a last one.

    What fails before the first event is an ordinary refusal with its own status, unless that
    takes so long that the stream is begun to show that it lives."""

    def __init__(self, events: AsyncIterator[bytes], last: bytes = DONE) -> None:
        self._events, self._last = events, last

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(scope, receive, send))
        gone = asyncio.ensure_future(until_gone(receive))
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not sending.done():
                sending.cancel()
            with suppress(asyncio.CancelledError):
                await sending
            close = getattr(self._events, "aclose", None)
            if close is not None:
                await close()

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        first = asyncio.create_task(_first(self._events))
        try:
            await asyncio.wait({first}, timeout=PING_SECONDS)
            failure = first.exception() if first.done() else None
            if isinstance(failure, ApiError):
                await error_response(failure)(scope, receive, send)
                return
            if failure is not None:
                raise failure
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            await self._send_events(first, scope, send)
        finally:
            first.cancel()
            await asyncio.wait({first})  # the iterator is closed next

    async def _send_events(self, first: asyncio.Task[bytes], scope: Scope, send: Send) -> None:
        writing = _Writing(send)
        pinging = asyncio.create_task(writing.ping(at_once=not first.done()))
        try:
            async with asyncio.timeout(None) as writing.patience:
                await writing.write(await first)
                async for event in self._events:
                    await writing.write(event)
                await writing.write(self._last)
        except TimeoutError:
            scope.get("quire.cut", lambda: None)()
            return
        except ApiError as error:
            await send(_body(event_of(error.body()), more=True))
        except Exception:  # the headers are out: an event is all that can still be told
            failed = server_error("the server failed on this request", code="internal_error")
            await send(_body(event_of(failed.body()), more=False))
            raise
        finally:
            pinging.cancel()
        await send(_body(b"", more=False))


async def _first(events: AsyncIterator[bytes]) -> bytes:
    return await anext(events, b"")


class _Writing:
    """The body of one stream. `send` waits while the reader has too much unread, which `patience`
    bounds. A stream that has nothing to say for long sends comments, which clients skip: proxies
    cut connections that look dead."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.patience: asyncio.Timeout
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()

    async def write(self, data: bytes) -> None:
        self._last = self._loop.time()
        self.patience.reschedule(self._last + SLOW_READER_SECONDS)
        await self._send(_body(data, more=True))
        self.patience.reschedule(None)

    async def ping(self, *, at_once: bool) -> None:
        """Until cancelled. A line alone: after an empty one clients look for an event."""
        if at_once:
            await self._send(_body(PING, more=True))
        while True:
            await asyncio.sleep(PING_SECONDS)
            if self._loop.time() - self._last >= PING_SECONDS:
                await self._send(_body(PING, more=True))


def _body(data: bytes, *, more: bool) -> dict[str, object]:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def until_gone(receive: Receive) -> None:
    """Until the client is; its body was read before."""
    while (await receive())["type"] != "http.disconnect":
        pass
