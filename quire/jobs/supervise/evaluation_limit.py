"""Limits the time for one row: a template that loops for long must not stop a job.

One thread evaluates, and another one checks its time now and then. Only the processor time of the
evaluating thread counts, so that no row fails because the machine is busy or the job was suspended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from quire.jobs.input.rows import BadRow

Made = TypeVar("Made")
SECONDS = 3.0
# Seconds of the same clock after which the exception is raised again if the thread still works:
# Python swallows an exception that is raised in a callback of its garbage collector.
_AGAIN = 0.5


class _Overdue(BaseException):
    """Raised in the evaluating thread; no template can catch it."""


class EvaluationLimit:
    """Runs evaluations in one thread; `look`, from another, ends the one that takes too long."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self._lock = threading.Lock()
        self._thread, self._clock = 0, _Clock(0)
        self._since: float | None = None  # start, by the thread's clock; None between evaluations
        self._raised_at: float | None = None

    def allow(self, evaluate: Callable[[], Made]) -> Made:
        """The result of the call; BadRow if it took too long."""
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
    """The processor seconds of a thread; real seconds where the system has no such clock."""

    def __init__(self, thread: int) -> None:
        self._number: int | None = None
        if thread and hasattr(time, "pthread_getcpuclockid"):
            self._number = time.pthread_getcpuclockid(thread)

    def now(self) -> float:
        return time.monotonic() if self._number is None else time.clock_gettime(self._number)


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    """Raise this exception in the thread when it next runs Python code; None cancels that."""
    import ctypes

    given = ctypes.py_object() if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), given)
