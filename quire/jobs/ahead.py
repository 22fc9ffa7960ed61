"""Rows made ready aside: whatever reading, selecting or writing out a row takes, the supervisor
hears signals, syncs results and watches its engine meanwhile."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Generator, Iterator
from typing import Generic, TypeVar

from quire.jobs.patience import Patience

Item = TypeVar("Item")
MOST_ITEMS, MOST_BYTES = 512, 4 << 20  # that lie ready
_FAREWELL = 2.0  # seconds that a thread has to notice that it is no longer wanted


class Ahead(Generic[Item]):
    """The items of an iterator, made by a thread of its own and taken here without waiting: None
    where the next one is not ready yet. What the iterator raises is raised here, in its place."""

    def __init__(self, items: Generator[Item], patience: Patience) -> None:
        self._items, self._patience = items, patience
        self._ready: deque[Item] = deque()
        self._num_bytes = 0
        self._changed = threading.Condition()
        self._closed = self._ended = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._make, name="quire-rows", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Item | None]:
        return self

    def __next__(self) -> Item | None:
        with self._changed:
            if self._ready:
                item = self._ready.popleft()
                self._num_bytes -= _size(item)
                # Not for each: the thread shall make many before it sleeps again.
                if len(self._ready) <= MOST_ITEMS // 2 and self._num_bytes <= MOST_BYTES // 2:
                    self._changed.notify()
                return item
            ended, error, self._error = self._ended, self._error, None
        if error is not None:
            raise error
        if ended:
            raise StopIteration
        self._patience.look()
        return None

    def wait(self) -> Iterator[Item]:
        """The items, for whoever has nothing else to do."""
        for item in self:
            if item is None:
                time.sleep(0.005)
            else:
                yield item

    def close(self) -> None:
        """Make no more of them. Twice is fine."""
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify()
        deadline = time.monotonic() + _FAREWELL
        while self._thread.is_alive() and time.monotonic() < deadline:
            self._patience.look(at_once=True)
            self._thread.join(0.05)

    def _make(self) -> None:
        try:
            for item in self._items:
                with self._changed:
                    while self._is_full() and not self._closed:
                        self._changed.wait()
                    if self._closed:
                        break
                    self._ready.append(item)
                    self._num_bytes += _size(item)
        except BaseException as error:  # whoever takes the items is told, wherever it happened
            self._error = error
        finally:
            self._ended = True
            self._items.close()

    def _is_full(self) -> bool:
        return len(self._ready) >= MOST_ITEMS or self._num_bytes > MOST_BYTES


def _size(item: object) -> int:
    return int(getattr(item, "size", 0))
