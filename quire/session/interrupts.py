"""Ctrl-C between steps, never inside one.

While a run goes on, the first Ctrl-C only leaves a mark: the step in progress ends, the rows
and blocks are put in order, and then KeyboardInterrupt is raised. A second one is raised where
it falls. A program that has its own handler keeps it.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType


class CtrlC:
    """Defers one Ctrl-C to the next `check`."""

    def __init__(self) -> None:
        self.pressed = False
        self._installed = False

    def __enter__(self) -> CtrlC:
        on_main_thread = threading.current_thread() is threading.main_thread()
        if on_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._mark)
            self._installed = True
        return self

    def _mark(self, number: int, frame: FrameType | None) -> None:
        if self.pressed:
            raise KeyboardInterrupt
        self.pressed = True

    def check(self) -> None:
        """Raise the KeyboardInterrupt that was held back, if any."""
        if self.pressed:
            raise KeyboardInterrupt

    def __exit__(self, *error: object) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._installed = False
