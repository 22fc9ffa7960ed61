"""What the engine says, written by a thread of its own: a step never waits for its reader, unless
that has fallen far behind."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from quire.base.system import write_all

MOST_UNWRITTEN = 4096  # messages; then the engine waits
encoded = msgspec.json.Encoder().encode

Made = dict[str, Any]


class Writer(threading.Thread):
    """Sends messages in the order in which they were given. Some may be given as what makes them,
    so that making them is no work of the engine's thread."""

    def __init__(self, file: int) -> None:
        super().__init__(name="quire-writer", daemon=True)
        self._file = file
        self._messages: queue.Queue[Callable[[], list[Made]] | Made] = queue.Queue(MOST_UNWRITTEN)
        self._num_given = self._num_written = 0  # of those that are yet to be made
        self.start()

    def send(self, message: Callable[[], list[Made]] | Made) -> None:
        if callable(message):  # from one thread alone
            self._num_given += 1
        self._messages.put(message)

    def is_behind(self) -> bool:
        """Whether some that were to be made are not written yet: they take their time, or whoever
        reads them does."""
        return self._num_written < self._num_given

    def run(self) -> None:
        while True:
            message = self._messages.get()
            made = message() if callable(message) else [message]
            write_all(self._file, b"".join(encoded(one) + b"\n" for one in made))
            self._num_written += callable(message)
            self._messages.task_done()

    def flush(self) -> None:
        """Until all of it is written."""
        self._messages.join()
