"""Python's collector, where very many lasting objects are made at once."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def making_many() -> Iterator[None]:
    """Make very many objects that last: Python does not look through them again and again while
    they are made, which takes longer than making them, and counts them as old afterwards."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
    count_as_old()


def count_as_old() -> None:
    """Have what exists now counted among the old objects, after young garbage is collected.

    When the old ones have grown by a quarter, Python looks through all of them, which with torch
    takes a tenth of a second and more; of objects that were just made to be kept it finds none to
    free. A program that turned the collector off, or froze objects, keeps it as it is.
    """
    if gc.isenabled() and not gc.get_freeze_count():
        gc.collect(1)
        gc.freeze()
        gc.unfreeze()
