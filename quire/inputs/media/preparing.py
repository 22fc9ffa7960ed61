"""Prepares media before the engine needs them: in threads, in planned order, in limited memory.

Pillow computes without Python's lock, so threads are enough. The limit counts the bytes of media
that are prepared and not yet encoded: the largest of decoded pixels, prepared arrays and rows. A
request is begun when all of its media fit into the limit, or when nothing else is prepared. So
every request that was begun can finish, and its encoded media make room for the next one.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock

from quire.base.cores import usable_cores
from quire.inputs.media.children import MediaChildren
from quire.request import Arrays, MediaItem, Request
from quire.step import Encode

MOST_BYTES = 1 << 30
MOST_THREADS = 8


@dataclass(frozen=True, slots=True)
class BackgroundEncoder:
    """Encodes prepared items on other threads, into rows of `row_bytes` bytes each."""

    encode: Callable[[Encode], Arrays]
    row_bytes: int


class PreparedMedium:
    """The input of the encoder for one item. `prepare` makes it; it takes about `num_bytes`."""

    def __init__(self, pool: MediaPool, prepare: Callable[[], Arrays], num_bytes: int) -> None:
        self._pool, self._prepare, self.num_bytes = pool, prepare, num_bytes
        self._made: Future[Arrays] | None = None
        self._held: weakref.finalize[..., PreparedMedium] | None = None
        self._was_encoded = False

    @property
    def is_needed(self) -> bool:
        """Whether a request must wait for this item. The output for an encoded item is probably
        stored; if not, the item is prepared when it is missed. For an item that is still being
        prepared a request waits, since otherwise the engine and all its rows would wait."""
        return not self._was_encoded and (self._made is None or not self._made.done())

    @property
    def num_more_bytes(self) -> int:
        """The bytes that the item will take, if it is not started."""
        return self.num_bytes if self._made is None and not self._was_encoded else 0

    def start(self, threads: ThreadPoolExecutor) -> None:
        """Start once. Do nothing if the item was encoded meanwhile for another request."""
        if self._made is None and not self._was_encoded:
            self._made = threads.submit(self._prepare)
            self._held = weakref.finalize(self, self._pool.drop, self.num_bytes)
            self._held.atexit = False
            self._pool.hold(self.num_bytes)

    def wait(self) -> None:
        if self._made is not None:
            self._made.result()

    def arrays(self) -> Arrays:
        return self._prepare() if self._made is None else self._made.result()

    def encoded(self) -> None:
        self._made, self._was_encoded = None, True
        if self._held is not None:
            self._held()
            self._held = None


class Preparing:
    """The media of one request while they are being prepared."""

    def __init__(self, pool: MediaPool, media: Sequence[PreparedMedium]) -> None:
        self._pool, self._media, self._is_begun = pool, list(media), False

    @property
    def num_more_bytes(self) -> int:
        return sum(one.num_more_bytes for one in self._media)

    def begin(self, threads: ThreadPoolExecutor) -> None:
        self._is_begun = True
        for one in self._media:
            one.start(threads)

    def done(self) -> bool:
        self._pool.begin_more()
        return self._is_begun and not any(one.is_needed for one in self._media)

    def hurry(self) -> None:
        """Begin this request and those before it, even beyond the limit of memory."""
        self._pool.begin_more(self)

    def result(self) -> None:
        """Wait until all media are prepared. InvalidPrompt if one cannot be read."""
        self.hurry()
        for one in self._media:
            one.wait()


class MediaPool:
    """Prepares media. An LLM has one pool."""

    def __init__(self, children: MediaChildren) -> None:
        """`children` decode encoded media. The pool does not close them."""
        self.children, self._lock = children, Lock()
        self.num_bytes = 0  # prepared, or being prepared, and not yet encoded
        self._waiting: deque[Preparing] = deque()
        self._threads: ThreadPoolExecutor | None = None
        # Whether an item (by serial) has stored output. If that is missed later, it is made then.
        self.holds: Callable[[int], bool] = lambda serial: False
        # In a server: encodes on other threads, so that the engine's thread need not.
        self.aside: BackgroundEncoder | None = None

    def prepare(self, request: Request) -> Preparing | None:
        """Prepare the media of a request; None if there is nothing to wait for."""
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
        """Begin requests in order while their media fit; those up to `wanted` in any case."""
        while self._waiting:
            fits = self.num_bytes + self._waiting[0].num_more_bytes <= MOST_BYTES
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
            count = min(MOST_THREADS, usable_cores())
            self._threads = ThreadPoolExecutor(count, "quire-media")
        return self._threads

    def close(self) -> None:
        self._waiting.clear()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None


def _waits(item: MediaItem) -> bool:
    return isinstance(item.features, PreparedMedium) and item.features.is_needed
