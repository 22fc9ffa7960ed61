"""Rows as the supervisor sends them: read aside, handed to the engine in windows."""

from __future__ import annotations

import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator

from quire.jobs.board import Board, Phase
from quire.jobs.wire import Lines, Message

Rows = list[Message]
Send = Callable[[Message], None]
_GATHER_SECONDS = 0.05  # how long an idle engine waits for a first window to fill


class Inbox:
    """What the supervisor sent, read by a thread of its own so that it never has to wait."""

    def __init__(self, file: int) -> None:
        self._messages: queue.Queue[Message] = queue.Queue()
        self._file = file
        threading.Thread(target=self._read, name="quire-inbox", daemon=True).start()

    def _read(self) -> None:
        lines = Lines()
        while data := os.read(self._file, 1 << 16):
            for message in lines.feed(data):
                self._messages.put(message)
        os._exit(0)  # the supervisor is gone, and nobody else wants an answer

    def get(self, timeout: float | None = None) -> Message | None:
        """The next message; None if none came in time."""
        try:
            return self._messages.get(timeout != 0, timeout)
        except queue.Empty:
            return None


class Feed:
    """The rows of one run, in windows, until the supervisor says "end"."""

    def __init__(self, inbox: Inbox, first: Message | None, board: Board, window: int) -> None:
        self._inbox, self._board, self._window = inbox, board, window
        self._waiting: deque[Message] = deque(first["rows"] if first else ())
        self._ended = first is None

    def windows(self, is_idle: Callable[[], bool]) -> Iterator[Rows]:
        """Up to a window of rows each time; an empty one where more may come but has not yet,
        which happens only while the engine is busy."""
        while True:
            self._gather(wait=is_idle())
            if not self._waiting and self._ended:
                return
            rows = [self._waiting.popleft() for _ in range(min(self._window, len(self._waiting)))]
            yield rows

    def _gather(self, *, wait: bool) -> None:
        while not self._ended and len(self._waiting) < self._window:
            timeout: float | None = 0
            if wait:
                self._board.move(Phase.IDLE)
                timeout = _GATHER_SECONDS if self._waiting else None
            message = self._inbox.get(timeout)
            if message is None:
                break
            if message["kind"] == "end":
                self._ended = True
            else:
                self._waiting.extend(message["rows"])
        self._board.move(Phase.WORKING)

    def rest(self) -> Rows:
        """All the rows, waiting for the end."""
        while not self._ended:
            self._gather(wait=True)
            self._window = len(self._waiting) + 1024
        return list(self._waiting)
