"""The two streams of an engine's process: messages from the parent, read by a thread, and to it."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable

from quire.base.system import write_all
from quire.replicas.wire import Lines, Message, pack, unpack

Send = Callable[[Message], None]


class Inbox:
    """Messages from the parent, read by a thread of their own so that the parent never waits."""

    def __init__(self, file: int) -> None:
        self._messages: queue.Queue[Message] = queue.Queue()
        self._file = file
        threading.Thread(target=self._read, name="quire-inbox", daemon=True).start()

    def _read(self) -> None:
        lines = Lines(unpack)
        while data := os.read(self._file, 1 << 16):
            for message in lines.feed(data):
                self._messages.put(message)
        os._exit(0)  # the parent has ended, and nothing else waits for answers

    def get(self, timeout: float | None = None) -> Message | None:
        """The next message; None if none came in time."""
        try:
            return self._messages.get(timeout != 0, timeout)
        except queue.Empty:
            return None


def sender(file: int) -> Send:
    """A function that writes whole messages to this file."""

    def send(message: Message) -> None:
        write_all(file, pack(message))

    return send
