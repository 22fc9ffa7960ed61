"""Server-sent events, sent until the last one, a failure, or the client leaves.

A stream that simply ends looks complete to a client, so a failure is an event of its own. If there
is nothing to send for long, comments are sent. If the client leaves, its rows are given up; a
client that does not read is disconnected.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from starlette.types import Receive, Scope, Send

from quire.jobs.output.json_line import on_one_line
from quire.openai_api.errors import ApiError
from quire.server.dialects import is_anthropic, refusal
from quire.server.limits import PING_SECONDS, SLOW_READER_SECONDS
from quire.server.replies import bug, error_response, json_bytes

Made = TypeVar("Made")
DONE = b"data: [DONE]\n\n"
PING = b": ping\n"  # without an empty line, after which clients would look for an event
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def event_of(data: Any, name: str = "") -> bytes:
    """One event, with its `name` for clients that read names."""
    named = f"event: {name}\n".encode() if name else b""
    return named + b"data: " + on_one_line(json_bytes(data)) + b"\n\n"


def error_event(error: ApiError, scope: Scope) -> bytes:
    _, body = refusal(error, scope)
    return event_of(body, "error" if is_anthropic(scope) else "")


def ping(scope: Scope) -> bytes:
    """A comment or event that keeps the connection alive, and that clients ignore."""
    return event_of({"type": "ping"}, "ping") if is_anthropic(scope) else PING


class EventResponse:
    """An ASGI response of the events that an iterator yields, and a last one.

    A failure before the first event is an ordinary refusal with its own status, unless the stream
    had to be begun before, to send a comment."""

    def __init__(self, events: AsyncIterator[bytes], last: bytes = DONE) -> None:
        self._events, self._last = events, last

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._send(scope, receive, send))
        except ClientGone:
            pass  # the client has left
        finally:
            close = getattr(self._events, "aclose", None)
            if close is not None:
                await close()

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        writing = _Writing(send, ping(scope))
        try:
            async with asyncio.timeout(None) as patience:
                with writing.watched(patience):
                    async for event in self._events:
                        await writing.write(event)
                    await writing.write(self._last, more=False)
        except TimeoutError:
            scope.get("quire.cut", lambda: None)()
            return
        except ApiError as error:
            if not writing.is_begun:
                await error_response(error, scope)(scope, receive, send)
                return
            await writing.write(error_event(error, scope), more=False)
        except Exception:
            if writing.is_begun:  # the headers are sent, so the error can only be an event
                await writing.write(error_event(bug(), scope), more=False)
            raise


class _Writing:
    """The body of one stream. `send` waits while the client has too much unread data, up to a time
    limit. If there is nothing to send for long, comments are sent, which clients skip: proxies cut
    connections without traffic."""

    def __init__(self, send: Send, ping: bytes) -> None:
        self.is_begun = False
        self._ping = ping
        self._send, self._loop = send, asyncio.get_running_loop()
        self._last = self._loop.time()
        self._is_writing = False  # a write that began at `_last` is not finished
        self._pings: set[asyncio.Task[None]] = set()

    async def write(self, data: bytes, *, more: bool = True) -> None:
        self._last, self._is_writing = self._loop.time(), True
        if not self.is_begun:
            self.is_begun = True
            await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await self._send({"type": "http.response.body", "body": data, "more_body": more})
        self._is_writing = False

    @contextmanager
    def watched(self, patience: asyncio.Timeout) -> Iterator[None]:
        """Check the stream with one timer: a task, or a timer for each event, would cost as much as
        the event itself."""
        self._timer = self._loop.call_later(_each(), self._look, patience)
        try:
            yield
        finally:
            self._timer.cancel()
            for ping in tuple(self._pings):
                ping.cancel()

    def _look(self, patience: asyncio.Timeout) -> None:
        now = self._loop.time()
        due = self._last + (SLOW_READER_SECONDS if self._is_writing else PING_SECONDS)
        if now >= due and self._is_writing:
            patience.reschedule(now)
            return
        if now >= due:
            self._pings.add(ping := self._loop.create_task(self.write(self._ping)))
            ping.add_done_callback(self._pings.discard)
            due = now + PING_SECONDS
        self._timer = self._loop.call_at(min(due, now + _each()), self._look, patience)


def _each() -> float:
    """Seconds between two checks of a stream."""
    return min(PING_SECONDS, SLOW_READER_SECONDS)


class ClientGone(ApiError):
    """The client left, so no answer can reach it."""

    def __init__(self) -> None:
        super().__init__(400, "the client left", code="client_gone")


async def unless_gone(receive: Receive, work: Awaitable[Made]) -> Made:
    """The result of the work; ClientGone, with the work cancelled, if the client leaves before. The
    request's body must have been read."""
    # The work runs in the present task, since a task more for each of thousands takes memory.
    me, is_gone = asyncio.current_task(), False

    async def watch() -> None:
        nonlocal is_gone
        while (await receive())["type"] != "http.disconnect":
            pass
        is_gone = True
        if me is not None:
            me.cancel()

    watching = asyncio.ensure_future(watch())
    try:
        return await work
    except asyncio.CancelledError:
        if is_gone and me is not None and not me.uncancel():
            raise ClientGone from None
        raise
    finally:
        watching.cancel()
