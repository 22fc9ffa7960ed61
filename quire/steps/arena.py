"""Spans of a room of fixed size, which are handed out and given back."""

from __future__ import annotations

from collections.abc import Iterable


class Arena:
    """Hands out spans of a room, each from the first gap that is large enough."""

    def __init__(self, size: int, first: int = 0) -> None:
        self._free = [(first, size)]

    def take(self, size: int) -> int | None:
        """Where a span begins; None where no gap is large enough."""
        for i, (first, last) in enumerate(self._free):
            if last - first >= size:
                self._free[i : i + 1] = [(first + size, last)] if last - first > size else []
                return first
        return None

    def give(self, spans: Iterable[tuple[int, int]]) -> None:
        """Give spans back: (first, size) of each."""
        given = sorted([*self._free, *((first, first + size) for first, size in spans)])
        joined = given[:1]
        for begin, end in given[1:]:
            if begin == joined[-1][1]:
                joined[-1] = (joined[-1][0], end)
            else:
                joined.append((begin, end))
        self._free = joined
