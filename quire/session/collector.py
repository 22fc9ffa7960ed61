"""Python's garbage collector during calls and while loading.

A full collection reads every object that may hold others: every prompt, and all of torch. That
takes a tenth of a second and more, and happens a few times in a large call or while importing.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Collections of the middle generation between two full ones while a call runs; Python's default is
# 10. Rare enough to cost nothing, often enough that memory stays small in a call of hours.
SELDOM = 200


class _FullCollections:
    """Makes full collections rare while any call of this process runs.

    Nothing else changes: young objects are collected as always, at the usual times. A program that
    turned the collector off, set other thresholds or froze objects keeps all of that."""

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
            # Thresholds that the program set meanwhile are kept.
            if not self._num_calls and gc.get_threshold() == self._ours:
                gc.set_threshold(*self._before)


_full_collections = _FullCollections()


@contextmanager
def rare_full_collections() -> Iterator[None]:
    """A context for the time of a call."""
    _full_collections.begin()
    try:
        yield
    finally:
        _full_collections.end()


@contextmanager
def nothing_collected() -> Iterator[None]:
    """A context in which almost all new objects will live long: torch is imported faster by one or
    two tenths of a second. Afterwards they count as old, and are not looked through at once."""
    enabled = gc.isenabled()
    if enabled:
        gc.collect(1)  # existing garbage must not count as old
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
    """Exclude everything loaded so far from collections; only for processes of quire's own."""
    gc.collect()
    gc.freeze()
