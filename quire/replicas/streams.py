"""The two streams of an engine's process: messages in, read by a thread, and messages out."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable

from quire.base.system import write_all
from quire.replicas.wire import Lines, Message, pack, unpack

Send = Callable[[Message], None]


class Inbox:
    """What the parent sent, read by a thread of its own so that the parent never has to wait."""

    def __init__(self, file: int) -> None:
        self._messages: queue.Queue[Message] = queue.Queue()
        self._file = file
        threading.Thread(target=self._read, name="quire-inbox", daemon=True).start()

    def _read(self) -> None:
        lines = Lines(unpack)
        while data := os.read(self._file, 1 << 16):
            for message in lines.feed(data):
                self._messages.put(message)
        os._exit(0)  # the parent is gone, and nothing else wants an answer

    def get(self, timeout: float | None = None) -> Message | None:
        """The next message; None if none came in time."""
        try:
            return self._messages.get(timeout != 0, timeout)
        except queue.Empty:
            return None


def sender(file: int) -> Send:
    """What writes messages to this file, each of them whole."""

    def send(message: Message) -> None:
        write_all(file, pack(message))

    return send
