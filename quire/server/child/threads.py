"""The threads that prepare rows: a row does not wait for kinds of rows that take longer, nor for
all rows of another key."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from quire.replicas.wire import Message
from quire.session.engine_thread import Submission

FEW, MORE = 2, 4
TOGETHER = 64  # rows of batches that are prepared at once
Taken = tuple[Message, Submission]
Prepare = Callable[[Sequence[Taken]], None]


class _Turns:
    """Rows that wait for a thread, taken from the keys in turn. The caller must hold a lock."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[Taken]] = {}  # by key; the key whose turn is next is first

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def add(self, one: Taken) -> None:
        self._lines.setdefault(one[1].tenant, deque()).append(one)

    def take(self) -> Taken:
        tenant = next(iter(self._lines))
        line = self._lines.pop(tenant)
        one = line.popleft()
        if line:  # the key goes to the end
            self._lines[tenant] = line
        return one


class _Pool:
    """Threads that prepare rows one by one."""

    def __init__(self, count: int, name: str, prepare: Callable[[Taken], None]) -> None:
        self._threads = ThreadPoolExecutor(count, name)
        self._prepare, self._turns, self._lock = prepare, _Turns(), threading.Lock()

    def add(self, one: Taken) -> None:
        with self._lock:
            self._turns.add(one)
        self._threads.submit(self._prepare_next)

    def _prepare_next(self) -> None:
        with self._lock:
            one = self._turns.take()
        self._prepare(one)


class PreparingThreads:
    """Separate threads for texts, for media and for media that must be fetched: each takes longer
    than the one before. Rows of batches wait here until the engine has room for them."""

    def __init__(self, prepare: Prepare, wait_for_room: Callable[[], int]) -> None:
        """`wait_for_room` blocks until the engine wants rows of batches, and returns how many."""
        self._prepare, self._wait_for_room = prepare, wait_for_room
        self._text = _Pool(FEW, "quire-prepare", self._prepare_alone)
        self._media = _Pool(MORE, "quire-prepare-media", self._prepare_alone)
        self._fetched = _Pool(MORE, "quire-fetch-media", self._prepare_alone)
        self._batch_media = _Pool(MORE, "quire-prepare-batch-media", self._prepare_later)
        self._batches = _Turns()
        self._changed = threading.Condition()
        for _ in range(FEW):
            name = "quire-prepare-batches"
            threading.Thread(target=self._prepare_batches, name=name, daemon=True).start()

    def prepare(self, some: Sequence[Taken]) -> None:
        """Queue these rows for the threads that prepare them."""
        batches = []
        for row, asked in some:
            media = _media_parts(row)
            if not asked.background:
                self._pool(media).add((row, asked))
            elif media:
                self._batch_media.add((row, asked))
            else:
                batches.append((row, asked))
        if batches:
            with self._changed:
                for one in batches:
                    self._batches.add(one)
                self._changed.notify()

    def _pool(self, media: Sequence[Message]) -> _Pool:
        if any(map(_is_fetched, media)):
            return self._fetched
        return self._media if media else self._text

    def _prepare_alone(self, one: Taken) -> None:
        self._prepare([one])

    def _prepare_later(self, one: Taken) -> None:
        self._wait_for_room()
        self._prepare([one])

    def _prepare_batches(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._batches)
            most = min(self._wait_for_room(), TOGETHER)
            with self._changed:
                some = [self._batches.take() for _ in range(min(most, len(self._batches)))]
            if some:  # another thread may have taken them
                self._prepare(some)


def _media_parts(row: Message) -> list[Message]:
    if "sound" in row:
        return [row["sound"]]
    contents = [m.get("content") for m in row.get("messages", ()) if isinstance(m, dict)]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return [part for part in parts if isinstance(part, dict) and part.get("type") != "text"]


def _is_fetched(part: Message) -> bool:
    urls = [one.get("url") if isinstance(one, dict) else one for one in part.values()]
    return any(isinstance(url, str) and url.lstrip()[:4].lower() == "http" for url in urls)
