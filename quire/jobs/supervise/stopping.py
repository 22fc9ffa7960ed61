"""Ctrl-C, SIGTERM and a closed terminal during a job: the first asks it to stop, a second one stops
it at once."""

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
    """Raised at any point of the program. It is no Exception, so that code which catches every
    error of a row does not catch it and record it as that row's error."""


class StopSignals:
    """Handles these signals while the block runs; `asked` is True after the first. A SIGINT or
    SIGHUP that was ignored before stays ignored: a shell ignores SIGINT for its background jobs,
    and nohup ignores SIGHUP. Outside of the main thread Python allows no handlers, so none is
    set."""

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
            return  # a closed terminal may send SIGHUP twice: from the shell and from the kernel
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = number
        if self._at_once:
            raise _StopHere

    def asked(self) -> bool:
        return self.received is not None

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """In this block the first signal stops at once: nothing in it can be left half done."""
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
