"""Python's collector, where very many lasting objects are made at once."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def making_many() -> Iterator[None]:
    """Make objects that last: Python does not look through them again and again while they are
    made, which takes longer than making them, and counts them as old at once.

    Whatever else is young counts as old with them, so its garbage is collected before. When the old
    ones have grown by a quarter, Python looks through all of them, which with torch takes a tenth
    of a second and more; those that were just made to be kept do not count towards that. A program
    that turned the collector off, or froze objects, keeps it as it is.
    """
    if not gc.isenabled():
        yield
        return
    may_freeze = not gc.get_freeze_count()
    if may_freeze:
        gc.collect(1)
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        if may_freeze:
            gc.freeze()
            gc.unfreeze()
