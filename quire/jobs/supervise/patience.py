"""How long one row may be worked on: a template that goes round and round must not stop a job.

One thread evaluates, another looks at it now and then. Time is what the evaluating thread itself
has computed, so that a machine that is busy, or a job that was stopped for a while, costs no row.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from quire.jobs.input.rows import BadRow

Made = TypeVar("Made")
SECONDS = 3.0
# Seconds, by the same clock, until the exception is raised once more in a thread that still works:
# Python swallows one that is raised while its garbage collector calls back.
_AGAIN = 0.5


class _Overdue(BaseException):
    """Raised in the evaluating thread; no template can catch it."""


class Patience:
    """Runs evaluations in one thread; `look`, from another, ends the one that takes too long."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self._lock = threading.Lock()
        self._thread, self._clock = 0, _Clock(0)
        self._since: float | None = None  # by the thread's clock; None if nothing is evaluated
        self._raised_at: float | None = None

    def allow(self, evaluate: Callable[[], Made]) -> Made:
        """What the call returns; BadRow where that took too long."""
        thread = threading.get_ident()
        if thread != self._thread:
            self._thread, self._clock = thread, _Clock(thread)
        try:
            try:
                self._since = self._clock.now()
                return evaluate()
            finally:
                with self._lock:
                    self._since = None
                    if self._raised_at is not None:  # perhaps too late to have been noticed
                        _raise_in(thread, None)
        except _Overdue:
            self._since = None
            raise BadRow(
                "template_error", f"the row took longer than {self.seconds:g} seconds to write out"
            ) from None
        finally:
            self._raised_at = None

    def look(self, *, at_once: bool = False) -> None:
        """End the running evaluation if it has taken too long, or `at_once`."""
        with self._lock:
            since = self._since
            if since is None:
                return
            now, raised_at = self._clock.now(), self._raised_at
            if raised_at is not None and now - raised_at < _AGAIN:
                return
            if at_once or now - since > self.seconds:
                self._raised_at = now
                _raise_in(self._thread, _Overdue)


class _Clock:
    """Seconds that a thread has computed; where the system does not tell, seconds."""

    def __init__(self, thread: int) -> None:
        self._number: int | None = None
        if thread and hasattr(time, "pthread_getcpuclockid"):
            self._number = time.pthread_getcpuclockid(thread)

    def now(self) -> float:
        return time.monotonic() if self._number is None else time.clock_gettime(self._number)


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    """Let the thread meet this exception when it next runs Python code; None takes it back."""
    import ctypes

    given = ctypes.py_object() if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), given)
