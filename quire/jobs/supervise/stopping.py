"""Ctrl-C, SIGTERM and a closed terminal during a job: the first asks it to stop, another one stops
it where it is."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from quire.errors import JobStopped

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _StopHere(KeyboardInterrupt):
    """Raised wherever the program happens to be. No Exception: what reads a value and takes every
    one for the value's fault would take this one, and the output would have another row."""


class StopSignals:
    """Catches them while the block runs; `asked` once one came. A SIGINT or SIGHUP that is ignored
    stays so: a shell does that for what it runs in the background, whose terminal's Ctrl-C is meant
    for something else, and nohup for what is to outlive its terminal. In another thread than the
    main one, where Python allows no handlers, none is set."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._at_once = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if number == signal.SIGTERM or signal.getsignal(number) != signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGHUP:
            return  # the shell and the kernel may both tell that the terminal is gone
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = number
        if self._at_once:
            raise _StopHere

    def asked(self) -> bool:
        return self.received is not None

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Stop wherever it is in this block, which leaves nothing half done if it is left."""
        self._at_once = True
        try:
            if self.asked():
                raise _StopHere
            yield
        except _StopHere:
            raise JobStopped("stopped cleanly") from None
        finally:
            self._at_once = False

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
