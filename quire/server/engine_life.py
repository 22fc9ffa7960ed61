"""One process of the engine, on an event loop: its messages both ways, and how it ended."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from quire.base.system import kill_group
from quire.replicas.board import Board
from quire.replicas.memory_kills import MemoryKills
from quire.replicas.stderr_tail import StderrTail
from quire.replicas.suspects import Death
from quire.replicas.wire import Lines
from quire.server.wire import Message, decode

COMMAND = (sys.executable, "-m", "quire.server.child")
_CHUNK = 1 << 18


class EngineLife:
    """Made by `begin`."""

    def __init__(
        self, process: asyncio.subprocess.Process, board: Board, hear: Callable[[str], None]
    ) -> None:
        self._process, self.board, self._stderr = process, board, StderrTail(hear)
        self._listening: asyncio.Task[None] | None = None
        self._memory, self._killed = MemoryKills(), False
        self._ready_at = self._ended_at = 0.0  # by the monotonic clock

    @classmethod
    async def begin(
        cls,
        opening: Mapping[str, Any],
        *,
        command: Sequence[str] = COMMAND,
        hear: Callable[[str], None],
    ) -> EngineLife:
        """Start the process. `hear` gets each line that it writes to stderr."""
        board = Board.create()
        process = await asyncio.create_subprocess_exec(
            *command,
            "--board",
            str(board.number),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=[board.number],
            start_new_session=True,  # a Ctrl-C in the terminal goes to the server only
        )
        life = cls(process, board, hear)
        life._listening = asyncio.create_task(life._listen())
        life.send(opening)
        return life

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: Mapping[str, Any]) -> None:
        """Queue a message. The server's own queue limits how many can wait."""
        pipe = self._process.stdin
        if pipe is not None and not pipe.is_closing():
            pipe.write(msgspec.json.encode(message) + b"\n")

    async def messages(self) -> AsyncIterator[Message]:
        """The engine's messages, until it closes its output or sends a broken one."""
        pipe, lines = self._process.stdout, Lines(decode, self._stderr.keep)
        while pipe is not None and (data := await pipe.read(_CHUNK)):
            try:
                for message in lines.feed(data):
                    if message.kind == "ready":
                        self._ready_at = time.monotonic()
                    yield message
            except msgspec.DecodeError:
                # A broken message: nothing that follows can be trusted.
                self.kill()
                return

    async def _listen(self) -> None:
        pipe = self._process.stderr
        while pipe is not None and (data := await pipe.read(_CHUNK)):
            self._stderr.feed(data)

    def kill(self) -> None:
        if self._process.returncode is None:
            self._killed = True
            kill_group(self._process.pid)

    def death(self, code: int, *, asked_at: float, others: bool) -> Death:
        """How the engine ended, as seen by a row that was given to it at `asked_at`."""
        outside = not self._killed and self._memory.is_foreign(code)
        return Death(self._ended_at - self._ready_at, self._ended_at - asked_at, others, outside)

    async def end(self) -> int:
        """Make sure that the process has ended; returns its exit code, negative for a signal."""
        self._ended_at = time.monotonic()
        if self._process.stdin is not None:
            self._process.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                await self._process.wait()
        self.kill()
        code = await self._process.wait()
        if self._listening is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(2.0):
                    await self._listening
            self._listening.cancel()
        self.board.close()
        return code

    @property
    def stderr_tail(self) -> str:
        return str(self._stderr)
