"""Reads the media of many prompts in advance, in threads, so that the code which reads the prompts
one by one seldom waits. URLs are fetched, files are hashed, and decoding processes read headers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.inputs.media.given import Source
from quire.inputs.media.urls import MediaUrl
from quire.inputs.parse import GivenMedia

THREADS = 8  # each mostly waits for a network or another process
MOST_AHEAD = 4 * THREADS  # prompts whose fetched media are in memory


@dataclass(frozen=True, slots=True)
class Looked:
    """The media of a prompt, whose URLs have been replaced by bytes or paths, and the sources of
    its encoded items, by the `id()` of each item."""

    given: GivenMedia
    sources: Mapping[int, Source]


class LookAhead:
    """Calls `look` in threads for prompts, in the order in which they will be read."""

    def __init__(self, prompts: Iterable[GivenMedia], look: Callable[[GivenMedia], Looked]) -> None:
        self._look, self._left = look, _with_something_new(prompts)
        self._begun: deque[tuple[GivenMedia, Future[Looked]]] = deque()
        self._threads = ThreadPoolExecutor(THREADS, "quire-look-ahead")

    def take(self, given: GivenMedia) -> Looked | None:
        """What `look` returned for this prompt, or None if it was not called. If `look` raised an
        error, this method raises it."""
        while len(self._begun) < MOST_AHEAD and (new := next(self._left, None)) is not None:
            self._begun.append((new, self._threads.submit(self._look, new)))
        if not self._begun or self._begun[0][0] is not given:
            return None
        return self._begun.popleft()[1].result()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def is_encoded(given: object) -> bool:
    """Whether an item must be read, fetched or decoded to know its size."""
    return isinstance(given, bytes | bytearray | memoryview | Path | MediaUrl) or (
        isinstance(given, Mapping) and ("bytes" in given or "path" in given)
    )


def _with_something_new(prompts: Iterable[GivenMedia]) -> Iterator[GivenMedia]:
    """The prompts that have an encoded item which no earlier prompt has."""
    known: set[int] = set()
    for prompt in prompts:
        items = {id(one) for value in prompt.data.values() for one in _each(value)}
        if not items <= known:
            yield prompt
        known |= items


def _each(value: Any) -> Sequence[Any]:
    several = value if isinstance(value, list | tuple) else (value,)
    return [one for one in several if is_encoded(one)]
