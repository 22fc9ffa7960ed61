"""Media prepared ahead of the engine, in threads, in the order of the plan, in bounded memory.

Pillow computes without the interpreter's lock, so threads do. What is prepared and not yet encoded
is counted in bytes, by its pixels where those are more; a request is begun when all of its media
fit beside that, or when nothing is held. So whoever was begun can always go on, and what has been
encoded makes room for the next.
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
class Aside:
    """Makes of what was prepared of an item what its tower makes of that: rows of so many bytes."""

    encode: Callable[[Encode], Arrays]
    row_bytes: int


class PreparedMedium:
    """What an encoder reads of one item. `prepare` makes it, of about `num_bytes`."""

    def __init__(self, pool: MediaPool, prepare: Callable[[], Arrays], num_bytes: int) -> None:
        self._pool, self._prepare, self.num_bytes = pool, prepare, num_bytes
        self._made: Future[Arrays] | None = None
        self._held: weakref.finalize[..., PreparedMedium] | None = None
        self._was_encoded = False

    @property
    def is_needed(self) -> bool:
        """Whether a request is to wait for it: one that was encoded once is likely to be there
        still, and otherwise prepared when it is missed. One that is only on its way would have the
        engine wait that missed it, with all the others."""
        return not self._was_encoded and (self._made is None or not self._made.done())

    @property
    def num_more_bytes(self) -> int:
        """That it will take, and has not yet."""
        return self.num_bytes if self._made is None and not self._was_encoded else 0

    def start(self, threads: ThreadPoolExecutor) -> None:
        """Once; nothing is done for one that was encoded meanwhile, for another request."""
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
    """The media of one request on their way."""

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
        """Begin, however much is held."""
        self._pool.begin_more(self)

    def result(self) -> None:
        """Wait; InvalidPrompt where a medium cannot be read."""
        self.hurry()
        for one in self._media:
            one.wait()


class MediaPool:
    """Prepares media; one for an LLM."""

    def __init__(self, children: MediaChildren) -> None:
        """What is encoded is decoded by `children`, which their owner ends."""
        self.children, self._lock = children, Lock()
        self.num_bytes = 0  # prepared, or being prepared, and not yet encoded
        self._waiting: deque[Preparing] = deque()
        self._threads: ThreadPoolExecutor | None = None
        # Whether an item is encoded already: one that is then missed is prepared when it is.
        self.holds: Callable[[int], bool] = lambda serial: False
        # Where others wait for the engine's thread, which would encode: its threads do.
        self.aside: Aside | None = None

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
