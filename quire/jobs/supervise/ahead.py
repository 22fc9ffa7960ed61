"""Rows made ready in a thread of their own: however long reading, selecting or writing out a row
takes, the supervisor hears signals, syncs results and watches its engine meanwhile."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Generator, Iterator
from typing import Generic, TypeVar

from quire.jobs.supervise.patience import Patience

Item = TypeVar("Item")
MOST_ITEMS, MOST_BYTES = 512, 4 << 20  # that lie ready
_FAREWELL = 2.0  # seconds that a thread has to notice that it is no longer wanted
_NEXT = 0.1  # of them until what it evaluates is ended: between two rows it notices by itself


class Ahead(Generic[Item]):
    """The items of an iterator, made by a thread of its own and taken here without waiting: None
    where the next one is not ready yet. What the iterator raises is raised here, in its place."""

    def __init__(self, items: Generator[Item], patience: Patience) -> None:
        self._items, self._patience = items, patience
        self._ready: deque[Item] = deque()
        self._bytes_made = self._bytes_taken = 0  # each written by one side alone
        self._changed = threading.Condition()  # for a thread that sleeps until there is room
        self._asleep = self._closed = self._ended = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._make, name="quire-rows", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Item | None]:
        return self

    def __next__(self) -> Item | None:
        ended = self._ended  # before looking: what it made last is there then
        if self._ready:
            item = self._ready.popleft()
            self._bytes_taken += _size(item)
            if self._asleep and self._has_room(2):
                self._wake()
            return item
        if not ended:
            if self._asleep:
                self._wake()
            self._patience.look()
            return None
        error, self._error = self._error, None
        if error is not None:
            raise error
        raise StopIteration

    def wait(self) -> Iterator[Item]:
        """The items, waiting for each until it is ready."""
        for item in self:
            if item is None:
                time.sleep(0.005)
            else:
                yield item

    def close(self) -> None:
        """Make no more of them. Twice is fine."""
        self._closed = True
        started = time.monotonic()
        while self._thread.is_alive() and (waited := time.monotonic() - started) < _FAREWELL:
            self._wake()
            if waited > _NEXT:
                self._patience.look(at_once=True)
            self._thread.join(0.05)
        self._ready.clear()

    def _make(self) -> None:
        try:
            for item in self._items:
                self._ready.append(item)
                self._bytes_made += _size(item)
                if not self._has_room(1):
                    self._sleep()
                if self._closed:
                    break
        except BaseException as error:  # raised where the items are taken
            self._error = error
        finally:
            self._ended = True
            self._items.close()

    def _has_room(self, parts: int) -> bool:
        """Whether less lies ready than this part of what may."""
        size = self._bytes_made - self._bytes_taken
        return len(self._ready) < MOST_ITEMS // parts and size <= MOST_BYTES // parts

    def _sleep(self) -> None:
        with self._changed:
            self._asleep = True
            while not self._has_room(2) and not self._closed:
                self._changed.wait()
            self._asleep = False

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify()


def _size(item: object) -> int:
    return int(getattr(item, "size", 0))
