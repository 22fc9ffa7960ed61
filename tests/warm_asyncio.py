"""Engines of servers that begin warm: uvloop starts processes without subprocess.Popen, so what
tests/warm.py starts is shown to it as a process of asyncio's."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from tests.warm import WarmPopen, is_engine

_cold = asyncio.create_subprocess_exec


class _Reading(asyncio.StreamReaderProtocol):
    """Closes its pipe at the end of what comes."""

    def eof_received(self) -> bool:
        super().eof_received()
        return False


class WarmProcess:
    """What a server asks of an asyncio.subprocess.Process."""

    stdin: asyncio.StreamWriter

    def __init__(self, started: WarmPopen) -> None:
        self._started, self.pid = started, started.pid
        self.stdout, self.stderr = asyncio.StreamReader(), asyncio.StreamReader()
        self._ended = asyncio.create_task(asyncio.to_thread(started.wait))

    async def connect(self) -> None:
        loop, started = asyncio.get_running_loop(), self._started
        for reader, pipe in ((self.stdout, started.stdout), (self.stderr, started.stderr)):
            await loop.connect_read_pipe(partial(_Reading, reader), pipe)
        flow = partial(asyncio.StreamReaderProtocol, asyncio.StreamReader())
        transport, protocol = await loop.connect_write_pipe(flow, started.stdin)
        self.stdin = asyncio.StreamWriter(transport, protocol, None, loop)

    @property
    def returncode(self) -> int | None:
        code: int | None = self._started.returncode
        return code

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)


async def _start(*command: Any, **options: Any) -> Any:
    if not is_engine(command):
        return await _cold(*command, **options)
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    made = WarmProcess(WarmPopen(command, bufsize=0, **{**options, **pipes}))
    await made.connect()
    return made


@contextmanager
def warm_servers() -> Iterator[None]:
    asyncio.create_subprocess_exec = _start
    try:
        yield
    finally:
        asyncio.create_subprocess_exec = _cold
