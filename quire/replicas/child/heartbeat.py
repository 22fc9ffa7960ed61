"""Signs of life within a step, because a large step on a slow CPU may take very long.

A thread checks where in the code the working thread is. While that changes, the engine computes.
One that waits for ever, or is stuck in a kernel, stays at one place: then nothing is written.
"""

from __future__ import annotations

import sys
import threading
import time
from types import CodeType, FrameType

from quire.replicas.board import Board

SECONDS = 0.5  # between two checks
LONGEST_STEP = 3600.0  # a longer one counts as an endless loop


class Heartbeat(threading.Thread):
    """Calls `beat` of the board while the working thread (by default the main one) moves."""

    def __init__(self, board: Board, working: threading.Thread | None = None) -> None:
        super().__init__(name="quire-heartbeat", daemon=True)
        self._board, self._working = board, working or threading.main_thread()
        self.start()

    def run(self) -> None:
        before: list[tuple[CodeType, int]] = []
        while True:
            time.sleep(SECONDS)
            now = _whereabouts(self._working)
            if now != before and time.monotonic() - self._board.moved_at < LONGEST_STEP:
                self._board.beat()
            before = now


def _whereabouts(working: threading.Thread) -> list[tuple[CodeType, int]]:
    """The thread's stack: code objects, and the instruction in each."""
    frame: FrameType | None = sys._current_frames().get(working.ident or 0)
    found = []
    while frame is not None:
        found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return found
