"""Python's collector kept from looking at what cannot be garbage.

A full collection reads every object that may hold others: every prompt, and all of torch. That
takes a tenth of a second and more, and happens a few times in a large call or while importing.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def past_at_rest() -> Iterator[None]:
    """Let it look only at what is made from here on. A program that froze its past by itself
    keeps it so."""
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def nothing_collected() -> Iterator[None]:
    """For a while in which little but lasting things are made: torch's import is shorter by a
    tenth or two. They count as old then, and are not looked through at once."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        if enabled:
            gc.enable()
