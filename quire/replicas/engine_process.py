"""The engine's process as the supervisor sees it: messages to it, messages from it, and its end.

Nothing here blocks: a process that stopped reading must not stop the supervisor.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from quire.base.system import await_exit, kill_group
from quire.replicas.board import Board
from quire.replicas.stderr_tail import StderrTail
from quire.replicas.wire import Lines, Message, pack, unpack

ABSENCE = 5.0  # seconds between two polls, after which we were the ones who did not read
_LEAVING = 10.0  # seconds that the process may take to end after its last message
_CHUNK = 1 << 16


class EngineProcess:
    """One process of an engine."""

    def __init__(
        self,
        opening: Message,
        *,
        command: Sequence[str],
        hear: Callable[[str], None],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start it. `hear` gets each line that it writes to stderr; `environment` is its whole
        environment, ours if None."""
        self.board = Board.create()
        self._process = subprocess.Popen(
            [*command, "--board", str(self.board.number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[self.board.number],
            env=environment,
            process_group=0,  # so that Ctrl-C in the terminal reaches only the supervisor
        )
        self._in, self._out, self._err = (
            pipe.fileno()
            for pipe in (self._process.stdin, self._process.stdout, self._process.stderr)
            if pipe is not None
        )
        for number in (self._in, self._out, self._err):
            os.set_blocking(number, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._out, selectors.EVENT_READ)
        self._selector.register(self._err, selectors.EVENT_READ)
        self._outgoing: deque[memoryview] = deque()
        self._stderr = StderrTail(hear)
        self._lines = Lines(unpack, lambda line: hear(self._stderr.keep(line)))
        self.ended = self.place_lost = self.killed = False
        self._looked = self._back = time.monotonic()
        self._code: int | None = None
        self.send(opening)

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        """A descriptor that is readable when `poll` has something to do."""
        return self._selector.fileno()

    def send(self, message: Message) -> None:
        """Queue a message."""
        self._outgoing.append(memoryview(pack(message)))
        if len(self._outgoing) == 1 and not self.ended:
            self._selector.register(self._in, selectors.EVENT_WRITE)

    def poll(self, timeout: float) -> list[Message]:
        """Wait at most `timeout` seconds for something to happen; returns new messages."""
        messages: list[Message] = []
        for key, _ in self._selector.select(timeout):
            if key.fd == self._in:
                self._write()
            elif key.fd == self._out:
                messages += self._read()
            else:
                self._listen()
        now = time.monotonic()
        if now - self._looked > timeout + ABSENCE:
            self._back = now
        self._looked = now
        return messages

    def _write(self) -> None:
        try:
            while self._outgoing:
                written = os.write(self._in, self._outgoing[0])
                if written < len(self._outgoing[0]):
                    self._outgoing[0] = self._outgoing[0][written:]
                else:
                    self._outgoing.popleft()
        except BlockingIOError:
            return
        except BrokenPipeError:  # it died; the end of its output will show that, too
            self._outgoing.clear()
        self._selector.unregister(self._in)

    def _read(self) -> list[Message]:
        data = _available(self._out)
        if data == b"":
            self._selector.unregister(self._out)
            self.ended = True
        messages: list[Message] = []
        try:
            messages.extend(self._lines.feed(data or b""))
        except (ValueError, RecursionError):
            # Half a message and then something else: nothing after that can be trusted.
            self.kill()
            self.ended = self.killed = True
        return messages

    def _listen(self) -> bool:
        """Read its stderr; returns whether there may be more."""
        data = _available(self._err)
        if data == b"" and self._err in self._selector.get_map():
            self._selector.unregister(self._err)
        self._stderr.feed(data or b"")
        return bool(data)

    def is_hung(self) -> bool:
        """Whether it does not move. Time in which we did not read its messages (after Ctrl-Z, or
        while waiting for a disk) does not count, because it cannot move then."""
        return self.board.is_hung(time.monotonic() - self._back)

    def kill(self) -> None:
        if self._process.returncode is None:  # else another process may have its id by now
            kill_group(self._process.pid)

    def end(self) -> int:
        """Make sure that it has ended (twice is fine); returns its exit code, -N for signal N."""
        if self._code is not None:
            return self._code
        if not self.ended or not await_exit(self._process, _LEAVING):
            self.killed = True
        self.kill()  # with all that it started; its own exit code stays if it had ended
        self._code = code = self._process.wait()
        while self._listen():
            pass
        self._selector.close()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        self.board.close()
        return code

    @property
    def stderr_tail(self) -> str:
        return str(self._stderr)


def _available(number: int) -> bytes | None:
    """Bytes that can be read now: None if there are none, b"" at the end."""
    try:
        return os.read(number, _CHUNK)
    except BlockingIOError:
        return None


def described(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
