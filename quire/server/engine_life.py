"""One life of the engine's process: messages out, messages in, how it ended; on an event loop."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from quire.base.system import kill_group
from quire.replicas.board import Board, Phase
from quire.replicas.engine_process import SILENCE, SLOW_STEPS
from quire.replicas.memory_kills import MemoryKills
from quire.replicas.suspects import Fall
from quire.server.wire import Message, decode

COMMAND = (sys.executable, "-m", "quire.server.child")
_CHUNK = 1 << 18
_LAST_WORDS = 20
_LONGEST_LINE = 1 << 16
_MESSAGE = b'{"kind":'  # how each begins


class EngineLife:
    """Made by `begin`."""

    def __init__(self, process: asyncio.subprocess.Process, board: Board) -> None:
        self._process, self.board = process, board
        self._last_words: deque[str] = deque(maxlen=_LAST_WORDS)
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
        """Start it. `hear` gets each line that it writes to stderr."""
        board = Board.create()
        process = await asyncio.create_subprocess_exec(
            *command,
            "--board",
            str(board.number),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=[board.number],
            start_new_session=True,  # a Ctrl-C in the terminal is the server's to act on
        )
        life = cls(process, board)
        life._listening = asyncio.create_task(life._listen(hear))
        life.send(opening)
        return life

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: Mapping[str, Any]) -> None:
        """Queue a message. What waits is bounded by what the server lets in."""
        pipe = self._process.stdin
        if pipe is not None and not pipe.is_closing():
            pipe.write(msgspec.json.encode(message) + b"\n")

    async def messages(self) -> AsyncIterator[Message]:
        """What it says, until it is silent for ever."""
        pipe, parts, begun = self._process.stdout, list[bytes](), False
        while pipe is not None and (data := await pipe.read(_CHUNK)):
            *whole, rest = data.split(b"\n")
            if whole:
                whole[0] = b"".join([*parts, whole[0]])
                parts = []
            parts.append(rest)
            for line in whole:
                if not begun:  # a Python may be set up to print when it starts, without a new line
                    words, mark, rest_of_it = line.partition(_MESSAGE)
                    line = mark + rest_of_it
                    if words:
                        self._last_words.append(words[-_LONGEST_LINE:].decode(errors="replace"))
                try:
                    message = decode(line)
                except msgspec.DecodeError:
                    if not begun:
                        continue
                    # Half a message and then something else: it is not in its right mind any more.
                    self.kill()
                    return
                begun = True
                if message.kind == "ready":
                    self._ready_at = time.monotonic()
                yield message

    async def _listen(self, hear: Callable[[str], None]) -> None:
        pipe, half = self._process.stderr, b""
        while pipe is not None and (data := await pipe.read(_CHUNK)):
            *lines, half = (half + data).split(b"\n")
            half = half[-_LONGEST_LINE:]
            for line in lines:
                text = line[-_LONGEST_LINE:].decode(errors="replace")
                self._last_words.append(text)
                hear(text)

    def is_hung(self) -> bool:
        """Whether it works on rows and has not moved for far too long."""
        if self.board.phase() != Phase.WORKING:
            return False
        silent, median = self.board.silent_for()
        return silent > max(SILENCE, SLOW_STEPS * median)

    def kill(self) -> None:
        if self._process.returncode is None:
            self._killed = True
            kill_group(self._process.pid)

    def fall(self, code: int, *, asked_at: float, others: bool) -> Fall:
        """How it ended, once it was ready, for a row that it was asked then."""
        outside = not self._killed and self._memory.is_foreign(code)
        return Fall(self._ended_at - self._ready_at, self._ended_at - asked_at, others, outside)

    async def end(self) -> int:
        """Make sure that it is gone; its exit code, negative for a signal."""
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
        """What it wrote last, for whoever wants to know why it died."""
        return "\n".join(self._last_words)
