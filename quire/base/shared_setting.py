"""Settings of the whole process that several threads need at once."""

from __future__ import annotations

import threading
from collections.abc import Callable


class SharedSetting:
    """A context: the first thread to enter changes the setting, the last to leave undoes that."""

    def __init__(self, change: Callable[[], Callable[[], object]]) -> None:
        """`change` makes the change, and returns a function that undoes it."""
        self._change, self._lock, self._inside = change, threading.Lock(), 0
        self._take_back: Callable[[], object] | None = None

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._take_back = self._change()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside and self._take_back is not None:
                self._take_back()
