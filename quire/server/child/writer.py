"""What the engine says, written by a thread of its own: a step never waits for its reader, unless
that has fallen far behind."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from typing import Any

import msgspec

MOST_UNWRITTEN = 4096  # messages; then the engine waits
_encode = msgspec.json.Encoder().encode

Made = dict[str, Any]


class Writer(threading.Thread):
    """Sends messages in the order in which they were given. One may be given as what makes it, so
    that making it is no work of the engine's thread."""

    def __init__(self, file: int) -> None:
        super().__init__(name="quire-writer", daemon=True)
        self._file = file
        self._messages: queue.Queue[Callable[[], Made] | Made] = queue.Queue(MOST_UNWRITTEN)
        self.start()

    def send(self, message: Callable[[], Made] | Made) -> None:
        self._messages.put(message)

    def run(self) -> None:
        while True:
            message = self._messages.get()
            data = _encode(message() if callable(message) else message) + b"\n"
            view = memoryview(data)
            while view:
                view = view[os.write(self._file, view) :]
            self._messages.task_done()

    def flush(self) -> None:
        """Until all of it is written."""
        self._messages.join()
