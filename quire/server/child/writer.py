"""A thread that writes the engine's messages, so that a step does not wait for their reader, unless
the reader is far behind."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from quire.base.system import write_all

MOST_UNWRITTEN = 4096  # messages; with more the engine waits
encoded = msgspec.json.Encoder().encode

Made = dict[str, Any]


class Writer(threading.Thread):
    """Sends messages in the order in which they were given. A message may be given as a function
    that makes it, which this thread calls in place of the engine's thread."""

    def __init__(self, file: int) -> None:
        super().__init__(name="quire-writer", daemon=True)
        self._file = file
        self._messages: queue.Queue[Callable[[], list[Made]] | Made] = queue.Queue(MOST_UNWRITTEN)
        self._num_given = self._num_written = 0  # counts of messages given as functions
        self.start()

    def send(self, message: Callable[[], list[Made]] | Made) -> None:
        if callable(message):  # only the engine's thread gives functions
            self._num_given += 1
        self._messages.put(message)

    def is_behind(self) -> bool:
        """Whether messages given as functions are not written yet, because making them takes long
        or the reader is slow."""
        return self._num_written < self._num_given

    def run(self) -> None:
        while True:
            message = self._messages.get()
            made = message() if callable(message) else [message]
            write_all(self._file, b"".join(encoded(one) + b"\n" for one in made))
            self._num_written += callable(message)
            self._messages.task_done()

    def flush(self) -> None:
        """Wait until everything is written."""
        self._messages.join()
