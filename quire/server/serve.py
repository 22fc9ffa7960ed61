"""Runs a server from its start to its end: the socket, the engine, the app, and signals.

After a signal to end the server drains: new generation is refused, running requests may finish, and
requests that only read are answered. A second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import uvicorn

from quire.base.notes import note
from quire.errors import EngineError, InvalidOption
from quire.server.app import make_app
from quire.server.batch_service import BatchService, StoreSettings
from quire.server.bridge import Bridge
from quire.server.engine_life import COMMAND
from quire.server.keys import Keys
from quire.server.limits import MOST_UNSENT
from quire.server.protocol import BoundedProtocol
from quire.server.services import Services, Settings

BACKLOG = 1024
_LAST_SECONDS = 2  # for connections to close after the grace period


class _Uvicorn(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing: Serving handles signals."""
        yield


class Serving:
    """One server. `run` returns when it has ended."""

    def __init__(self, settings: Settings, keys: Keys, *, command: Sequence[str] = COMMAND) -> None:
        self.settings = settings
        refuse_open_door(settings, keys)
        self.socket = bind(settings.host, settings.port)
        try:
            self._stored = BatchService(_store_settings(settings))
        except BaseException:
            self.socket.close()
            raise
        self.bridge = Bridge(settings, command=command)
        self.services = Services(self.bridge, settings, keys, self.bridge.adapters)
        config = uvicorn.Config(
            make_app(self.services, self._stored),
            http=BoundedProtocol,
            ws="none",
            loop="uvloop",
            log_config=None,
            log_level="error",  # no line for each invalid request: they could fill a disk
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=_LAST_SECONDS,
            backlog=BACKLOG,
        )
        self._uvicorn = _Uvicorn(config)
        self._ending: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def address(self) -> str:
        host, port = self.socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def run(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """Serve until a signal or `end`; raises the error if the engine cannot run."""
        runner = asyncio.Runner(loop_factory=self._uvicorn.config.get_loop_factory())
        try:
            with runner:
                runner.run(self._run(on_ready))
        finally:
            self._stored.close()

    def end(self) -> None:
        """Drain and end; may be called from any thread."""
        if self._loop is not None and self._ending is not None:
            self._loop.call_soon_threadsafe(self._ending.set)

    async def _run(self, on_ready: Callable[[], None]) -> None:
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        self._take_signals()
        engine = asyncio.create_task(self.bridge.run())
        http = asyncio.create_task(self._uvicorn.serve(sockets=[self.socket]))
        ready = asyncio.create_task(self._tell_ready(on_ready))
        ending = asyncio.create_task(self._ending.wait())
        try:
            await asyncio.wait({engine, http, ending}, return_when=asyncio.FIRST_COMPLETED)
            if http.done() and not self._ending.is_set():
                raise EngineError("the server could not be started; what was logged says why")
            if not engine.done():
                await self._drain()
        finally:
            ready.cancel()
            ending.cancel()
            self._uvicorn.should_exit = True
            try:
                with suppress(asyncio.CancelledError):
                    await http
            finally:
                engine.cancel()
                with suppress(asyncio.CancelledError):
                    await engine

    async def _tell_ready(self, on_ready: Callable[[], None]) -> None:
        await self.bridge.ready()
        while not self._uvicorn.started:
            await asyncio.sleep(0.01)
        on_ready()

    async def _drain(self) -> None:
        self.bridge.drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.settings.grace):
                await self.bridge.drained()
        # A stream that simply ends looks complete, so its client gets an error event.
        self.bridge.give_all_up()

    def _take_signals(self) -> None:
        loop, ending = self._loop, self._ending
        if loop is None or ending is None:
            return

        def stop() -> None:
            if ending.is_set():  # the second signal ends at once
                self.bridge.give_all_up()
                return
            note("stopping: what runs may finish; once more ends it at once")
            ending.set()

        def refuse_new(number: int, frame: object) -> None:
            # The event loop learns of a signal later; requests read before that came after it.
            self.bridge.state = "draining"

        with suppress(ValueError, RuntimeError):  # outside of the main thread the caller ends it
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, stop)
                signal.signal(number, refuse_new)  # called at once; the loop still gets the signal


def _store_settings(settings: Settings) -> StoreSettings:
    return StoreSettings(
        settings.data_dir,
        max_file_bytes=settings.max_file_bytes,
        quota_bytes=settings.quota_bytes,
    )


def refuse_open_door(settings: Settings, keys: Keys) -> None:
    """Refuse to listen on other hosts without keys."""
    if keys or settings.host in ("127.0.0.1", "::1", "localhost"):
        return
    raise InvalidOption(
        f"a server at {settings.host} can be reached from other machines, so it needs keys; leave "
        "--no-key out, or serve at 127.0.0.1",
        parameter="host",
        value=settings.host,
    )


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. An address in use is refused: two servers would share its callers."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Accepted connections inherit this limit of unread data; the kernel doubles the number.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST_UNSENT // 2)
    try:
        made.bind((host, port))
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise InvalidOption(
            f"nothing can listen at {host}:{port} ({error.strerror}); choose another --port",
            parameter="port",
            value=port,
        ) from None
    made.setblocking(False)
    return made
