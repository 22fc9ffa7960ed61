"""Prepares rows in a thread of their own. Even if it takes long to read, select or render a row,
the supervisor still reacts to signals, syncs results and watches its engines."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Generator, Iterator
from typing import Generic, TypeVar

from quire.jobs.supervise.evaluation_limit import EvaluationLimit

Item = TypeVar("Item")
MOST_ITEMS, MOST_BYTES = 512, 4 << 20  # prepared and not taken yet
_FAREWELL = 2.0  # seconds that `close` waits for the thread to end
_NEXT = 0.1  # seconds after which `close` interrupts the row that the thread evaluates


class RowsAhead(Generic[Item]):
    """The items of an iterator, made by a thread and taken here without waiting: None if the next
    one is not ready yet. An error of the iterator is raised here, after the items before it."""

    def __init__(self, items: Generator[Item], evaluation_limit: EvaluationLimit) -> None:
        self._items, self._evaluation_limit = items, evaluation_limit
        self._ready: deque[Item] = deque()
        self._bytes_made = self._bytes_taken = 0  # each is written by one thread only
        self._changed = threading.Condition()  # wakes the thread when there is room
        self._asleep = self._closed = self._ended = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._make, name="quire-rows", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Item | None]:
        return self

    def __next__(self) -> Item | None:
        ended = self._ended  # read first: if it is set, the last item is in `_ready` already
        if self._ready:
            item = self._ready.popleft()
            self._bytes_taken += _size(item)
            if self._asleep and self._has_room(2):
                self._wake()
            return item
        if not ended:
            if self._asleep:
                self._wake()
            self._evaluation_limit.look()
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
        """End the thread. A second call does nothing."""
        self._closed = True
        started = time.monotonic()
        while self._thread.is_alive() and (waited := time.monotonic() - started) < _FAREWELL:
            self._wake()
            if waited > _NEXT:
                self._evaluation_limit.look(at_once=True)
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
        """Whether fewer items are ready than the limits divided by `parts`."""
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
