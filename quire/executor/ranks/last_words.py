"""Reads what ranks write to stdout and stderr, so that no rank blocks, and keeps the end of it."""

from __future__ import annotations

import os
import selectors
import threading
from collections.abc import Sequence

_KEPT = 4 << 10  # bytes for each rank


class LastWords:
    """Reads pipes in a thread until they end."""

    def __init__(self, pipes: Sequence[int]) -> None:
        """It reads and closes the pipes, one for each rank."""
        self._ends = [b""] * len(pipes)
        self._pipes = list(pipes)
        self._thread = threading.Thread(target=self._read, name="quire-ranks", daemon=True)
        self._thread.start()

    def of(self, rank: int) -> str:
        """The last line that a rank wrote; empty if it wrote none."""
        lines = self._ends[rank].decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""

    def wait(self, seconds: float) -> None:
        """Wait until all pipes have ended, at most so long. Then all output of dying ranks is
        there."""
        self._thread.join(seconds)

    def _read(self) -> None:
        with selectors.DefaultSelector() as selector:
            for rank, pipe in enumerate(self._pipes):
                selector.register(pipe, selectors.EVENT_READ, rank)
            while selector.get_map():
                for key, _ in selector.select():
                    data = os.read(key.fd, 1 << 16)
                    if data:
                        self._ends[key.data] = (self._ends[key.data] + data)[-_KEPT:]
                    else:
                        selector.unregister(key.fd)
                        os.close(key.fd)
