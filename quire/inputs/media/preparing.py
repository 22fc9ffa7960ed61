"""Media prepared ahead of the engine, in threads, in the order of the plan, in bounded memory.

Pillow computes without the interpreter's lock, so threads do. What is prepared and not yet encoded
is counted in bytes; a request is begun when all of its media fit beside that, or when nothing is
held. So whoever was begun can always go on, and what has been encoded makes room for the next.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock

from quire.inputs.media.children import MediaChildren
from quire.request import Arrays, MediaItem, Request

MOST_BYTES = 1 << 30
MOST_THREADS = 8


class PreparedMedium:
    """What an encoder reads of one item. `prepare` makes it, of about `num_bytes`."""

    def __init__(self, pool: MediaPool, prepare: Callable[[], Arrays], num_bytes: int) -> None:
        self._pool, self._prepare, self.num_bytes = pool, prepare, num_bytes
        self._made: Future[Arrays] | None = None
        self._held: weakref.finalize[..., PreparedMedium] | None = None
        self._was_made = False

    @property
    def is_needed(self) -> bool:
        """Whether it is to be prepared before its request begins: one that was encoded once is
        likely to be there still, and otherwise prepared when it is missed."""
        return not self._was_made

    def start(self, threads: ThreadPoolExecutor) -> Future[Arrays]:
        if self._made is None:
            self._was_made = True
            self._made = threads.submit(self._prepare)
            self._held = weakref.finalize(self, self._pool.drop, self.num_bytes)
            self._held.atexit = False
            self._pool.hold(self.num_bytes)
        return self._made

    def arrays(self) -> Arrays:
        return self._prepare() if self._made is None else self._made.result()

    def encoded(self) -> None:
        self._made = None
        if self._held is not None:
            self._held()
            self._held = None


class Preparing:
    """The media of one request on their way."""

    def __init__(self, pool: MediaPool, media: Sequence[PreparedMedium]) -> None:
        self._pool, self._media = pool, list(media)
        self._begun: list[Future[Arrays]] | None = None

    @property
    def num_bytes(self) -> int:
        return sum(one.num_bytes for one in self._media)

    def begin(self, threads: ThreadPoolExecutor) -> None:
        self._begun = [one.start(threads) for one in self._media]

    def done(self) -> bool:
        self._pool.begin_more()
        return self._begun is not None and all(one.done() for one in self._begun)

    def result(self) -> None:
        """Wait; InvalidPrompt where a medium cannot be read."""
        self._pool.begin_more(self)
        for one in self._begun or ():
            one.result()


class MediaPool:
    """Prepares media; one for an LLM."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._lock = most_bytes, Lock()
        self.num_bytes = 0  # prepared, or being prepared, and not yet encoded
        self._waiting: deque[Preparing] = deque()
        self._threads: ThreadPoolExecutor | None = None
        self.children = MediaChildren()  # what is encoded is decoded there
        # Whether an item is encoded already: one that is then missed is prepared when it is.
        self.holds: Callable[[int], bool] = lambda serial: False

    def prepare(self, request: Request) -> Preparing | None:
        """Have the media of a request prepared; None where there is nothing to wait for."""
        needed = {
            id(i): i.features for i in request.items if _waits(i) and not self.holds(i.serial)
        }
        media = [one for one in needed.values() if isinstance(one, PreparedMedium)]
        if not media:
            return None
        waiting = Preparing(self, media)
        self._waiting.append(waiting)
        self.begin_more()
        return waiting

    def begin_more(self, wanted: Preparing | None = None) -> None:
        """Begin what fits; all that comes before one that is waited for, however much it is."""
        while self._waiting:
            fits = self.num_bytes + self._waiting[0].num_bytes <= self._most
            if not (fits or not self.num_bytes or wanted in self._waiting):
                return
            self._waiting.popleft().begin(self._workers())

    def hold(self, num_bytes: int) -> None:
        with self._lock:
            self.num_bytes += num_bytes

    def drop(self, num_bytes: int) -> None:
        with self._lock:
            self.num_bytes -= num_bytes

    def _workers(self) -> ThreadPoolExecutor:
        if self._threads is None:
            count = min(MOST_THREADS, len(os.sched_getaffinity(0)))
            self._threads = ThreadPoolExecutor(count, "quire-media")
        return self._threads

    def close(self) -> None:
        self._waiting.clear()
        self.children.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None


def _waits(item: MediaItem) -> bool:
    return isinstance(item.features, PreparedMedium) and item.features.is_needed
