"""Limits what waits: a request takes slots before any work is done, or is refused with 429.

One key may take all slots. Other keys can still add to them, each up to an equal share of the
slots, and one request in any case, so that no key is refused because of others. Each lane has its
own slots, so that batch rows take none from interactive requests.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any, get_args

from quire.openai_api.asks import Row
from quire.openai_api.errors import ApiError
from quire.openai_api.outputs import Output
from quire.server.services import Lane

_REMEMBERED = 256  # latest requests whose times are kept, to estimate the wait
_LONGEST_WAIT = 60  # seconds, the highest value of Retry-After
# An image or a sound in base64 has far more characters than tokens: so many count as one.
_MEDIA_SHARE = 32
_MEDIA_KEYS = ("data", "base64")


def _size(value: Any, *, is_medium: bool = False) -> int:
    """About how many characters of text a row has."""
    if isinstance(value, str):
        is_medium = is_medium or value.startswith("data:")
        return len(value) // _MEDIA_SHARE if is_medium else len(value)
    if isinstance(value, dict):
        return sum(_size(one, is_medium=name in _MEDIA_KEYS) for name, one in value.items())
    if isinstance(value, list):
        return sum(map(_size, value)) if value and not isinstance(value[0], int) else len(value)
    return 1


def _is_full(held: Counter[str], key_id: str, more: int, most: int) -> bool:
    """Whether `more` of this key exceeds both the limit of all keys and its equal share."""
    return held.total() + more > most and held[key_id] + more > most // len(held)


class Queueing:
    """Counts the requests in the engine, and their results."""

    def __init__(self, most: int, most_characters: int) -> None:
        self._most, self._most_characters = most, most_characters
        # lane -> (answers by key, characters by key); a key without any is not in it.
        self._held: dict[Lane, tuple[Counter[str], Counter[str]]] = {
            lane: (Counter(), Counter()) for lane in get_args(Lane)
        }
        self._rejected = 0
        self._counts = {"prompt_tokens": 0, "output_tokens": 0, "finished": 0}
        self._cached = 0
        self._seconds: deque[float] = deque(maxlen=_REMEMBERED)
        self._first_tokens: deque[float] = deque(maxlen=_REMEMBERED)

    @contextmanager
    def slot(self, row: Row, lane: Lane, capacity: int, key_id: str) -> Iterator[None]:
        """A place for each answer of a row; ApiError 429 where there is none."""
        if row.get("once"):  # a row of a batch: the dispatcher limits their number
            yield
            return
        samples, size = row.get("slots", row["params"].get("n", 1)), _size(row)
        held, characters = self._held[lane]
        if key_id in held and (
            _is_full(held, key_id, samples, self._most)
            or _is_full(characters, key_id, size, self._most_characters)
        ):
            self._rejected += 1
            raise self._full(held.total(), capacity)
        held[key_id] += samples
        characters[key_id] += size
        try:
            yield
        finally:
            held[key_id] -= samples
            characters[key_id] -= size
            if not held[key_id]:
                del held[key_id], characters[key_id]

    @property
    def num_held(self) -> int:
        """Slots that are taken, in all lanes."""
        return sum(held.total() for held, _ in self._held.values())

    def _full(self, num_held: int, capacity: int) -> ApiError:
        each = median(self._seconds) if self._seconds else 1.0
        wait = math.ceil(num_held / max(capacity, 1) * each)
        seconds = str(min(max(wait, 1), _LONGEST_WAIT))
        return ApiError(
            429,
            f"too much waits already; try again in {seconds} s",
            code="rate_limit_exceeded",
            type="rate_limit_error",
            headers=(("retry-after", seconds),),
        )

    def observe(self, lane: Lane, output: Output) -> None:
        self._counts["finished"] += 1
        self._counts["prompt_tokens"] += output.prompt_tokens
        self._counts["output_tokens"] += output.output_tokens
        self._cached += output.cached_tokens
        if lane == "interactive" and len(output.timings) == 3:
            _, first, last = output.timings
            self._seconds += [last] if last is not None else []
            self._first_tokens += [first] if first is not None else []

    def totals(self) -> dict[str, Any]:
        """Fields of EngineStats."""
        prompt = self._counts["prompt_tokens"]
        return {
            **self._counts,
            "rejected": self._rejected,
            "prefix_hits": round(self._cached / prompt, 4) if prompt else 0.0,
            "first_token_seconds": median(self._first_tokens) if self._first_tokens else None,
        }
