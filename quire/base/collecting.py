"""Python's collector, where very many lasting objects are made at once."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Objects made since they were last counted as old, and how many there may be: looking through young
# ones to find that none is garbage takes a good part of the time of making them.
_made = [0]
_MOST_MADE = 10_000


@contextmanager
def making_many(count: int) -> Iterator[None]:
    """Make `count` objects that last: Python does not look through them again and again while
    they are made, which takes longer than making them, and in time counts them as old."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
    _made[0] += count
    if _made[0] > _MOST_MADE:
        _made[0] = 0
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
