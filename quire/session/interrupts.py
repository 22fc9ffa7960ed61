"""Ctrl-C between steps, never inside one.

While a run goes on, the first Ctrl-C is only noted: the step in progress ends, rows and blocks are
put in order, and then KeyboardInterrupt is raised. A second Ctrl-C is raised at once. A program
with a handler of its own keeps it.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType


class CtrlC:
    """Delays one Ctrl-C until the next `check`."""

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
        """Raise KeyboardInterrupt if Ctrl-C was pressed."""
        if self.pressed:
            raise KeyboardInterrupt

    def __exit__(self, *error: object) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._installed = False
