"""Server-sent events: pieces sent as they come, until the last, a failure, or a reader that left.

A stream that ends without `[DONE]` looks complete to a client, so a failure is an event of its
own. A reader that leaves gives its rows up; one that never reads is cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from starlette.types import Receive, Scope, Send

from quire.openai_api.errors import ApiError, server_error
from quire.server.limits import SLOW_READER_SECONDS
from quire.server.replies import error_response, json_bytes

DONE = b"data: [DONE]\n\n"
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

    What fails before the first event is an ordinary refusal with its own status."""

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
        try:
            first = await anext(self._events, b"")
        except ApiError as error:
            await error_response(error)(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        try:
            async with asyncio.timeout(None) as patience:
                await _write(send, patience, first)
                async for event in self._events:
                    await _write(send, patience, event)
                await _write(send, patience, self._last)
        except TimeoutError:
            scope.get("quire.cut", lambda: None)()
            return
        except ApiError as error:
            await send(_body(event_of(error.body()), more=True))
        except Exception:  # the headers are out: an event is all that can still be told
            failed = server_error("the server failed on this request", code="internal_error")
            await send(_body(event_of(failed.body()), more=False))
            raise
        await send(_body(b"", more=False))


async def _write(send: Send, patience: asyncio.Timeout, data: bytes) -> None:
    """`send` waits while the reader has too much unread; not for ever."""
    patience.reschedule(asyncio.get_running_loop().time() + SLOW_READER_SECONDS)
    await send(_body(data, more=True))
    patience.reschedule(None)


def _body(data: bytes, *, more: bool) -> dict[str, object]:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def until_gone(receive: Receive) -> None:
    """Until the client is; its body was read before."""
    while (await receive())["type"] != "http.disconnect":
        pass
