"""Signs of life within a step: a large one on a slow CPU takes longer than any fixed patience.

A thread looks where the working one is. As long as that changes, the engine computes; one that
waits for ever, or is lost inside a kernel, stays where it is, and so does the board's clock.
"""

from __future__ import annotations

import sys
import threading
import time
from types import CodeType, FrameType

from quire.replicas.board import Board

SECONDS = 0.5  # between two looks
LONGEST_STEP = 3600.0  # then it moves in a circle


class Heartbeat(threading.Thread):
    """Beats on the board while the thread that works gets somewhere: the main one, or another."""

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
    """The calls that the thread is in, and where in each."""
    frame: FrameType | None = sys._current_frames().get(working.ident or 0)
    found = []
    while frame is not None:
        found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return found
