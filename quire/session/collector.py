"""Python's collector during calls and while loading.

A full collection reads every object that may hold others: every prompt, and all of torch. That
takes a tenth of a second and more, and happens a few times in a large call or while importing.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Collections of the middle generation between two full ones while a call runs; Python's own
# figure is 10. Seldom enough not to be felt, often enough that a call of hours stays small.
SELDOM = 200


class _FullCollections:
    """Makes full collections rare while any call of this process runs.

    Nothing else changes: young objects are collected as always, and none grows old before its
    time. A program that turned the collector off, chose other thresholds or froze objects keeps
    all of that."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_calls = 0
        self._before = self._ours = (0, 0, 0)

    def begin(self) -> None:
        with self._lock:
            self._num_calls += 1
            if self._num_calls == 1:
                self._before = young, middle, full = gc.get_threshold()
                self._ours = young, middle, max(full, SELDOM)
                gc.set_threshold(*self._ours)

    def end(self) -> None:
        with self._lock:
            self._num_calls -= 1
            # Thresholds that the program set meanwhile are its own wish.
            if not self._num_calls and gc.get_threshold() == self._ours:
                gc.set_threshold(*self._before)


_full_collections = _FullCollections()


@contextmanager
def rare_full_collections() -> Iterator[None]:
    """For the time of a call."""
    _full_collections.begin()
    try:
        yield
    finally:
        _full_collections.end()


@contextmanager
def nothing_collected() -> Iterator[None]:
    """For a while in which little but lasting things are made: torch's import is shorter by a
    tenth or two. They count as old then, and are not looked through at once."""
    enabled = gc.isenabled()
    if enabled:
        gc.collect(1)  # what is garbage already must not count as old
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        if enabled:
            gc.enable()


def lasts_from_now_on() -> None:
    """What was loaded is never looked through again, for a process that is ours alone."""
    gc.collect()
    gc.freeze()
