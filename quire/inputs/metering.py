"""Meter: limits how much one rendering of a template may do.

Templates come from unknown authors, and a user's own template gets rows from others. So each
rendering has a budget of steps (nodes of the template that were run), of characters (in values that
it made or wrote) and of processor time. An operation that could make a large value at once asks
before. Steps and characters are equal on every machine, so a row fails everywhere or nowhere.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, ValuesView
from time import monotonic, thread_time
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace

MOST_CHARACTERS = 48 << 20  # of four bytes at most
MOST_STEPS = 2_000_000
MOST_NUMBERS = 10**6  # of all the `range`s of one rendering
MOST_SECONDS = 1.0
_LAST_SECONDS = 0.4
_STEPS_PER_LOOK = 256
_LARGE = 1 << 20
# What one character inside a list takes at most when the list is written as text: \U0001f600.
_ESCAPED = 12
_SMALL = 32
ITEM = 16  # what a small object in a list takes, in characters
SCALARS = frozenset({str, int, float, bool, type(None)})
SMALL_TEXT = 1 << 12
_ATTRIBUTES = "_Namespace__attrs"


class Meter:
    """The budget of one rendering.

    `left` is in characters. An operation that makes a small value may simply subtract from it:
    every repetition calls `step`, which checks it.
    """

    __slots__ = ("_deadline", "_look_at", "_numbers", "_steps", "_worked", "left")

    def __init__(self) -> None:
        self.left, self._steps, self._numbers = MOST_CHARACTERS, MOST_STEPS, MOST_NUMBERS
        self._look_at = MOST_STEPS - _STEPS_PER_LOOK
        self._deadline = monotonic() + MOST_SECONDS
        self._worked: float | None = None

    def step(self, steps: int, size: int = 0) -> None:
        """Count so many nodes that are about to run, and the `size` characters they write."""
        self._steps -= steps
        self.left -= size
        if self._steps < self._look_at or self.left < 0:
            self.look()

    def look(self) -> None:
        """Raise if a budget is used up."""
        if self._steps < 0:
            raise SecurityError(f"the template takes more than {MOST_STEPS:,} steps")
        if self.left < 0:
            raise _too_large()
        self._look_at = self._steps - _STEPS_PER_LOOK
        now = monotonic()
        if now < self._deadline:
            return
        # Only processor time of this thread counts: other threads may have delayed it.
        worked = thread_time()
        if self._worked is not None and worked - self._worked > _LAST_SECONDS:
            raise SecurityError(f"the template takes longer than {MOST_SECONDS} s")
        self._worked = worked if self._worked is None else self._worked
        self._deadline = now + _LAST_SECONDS / 2

    def need(self, size: int) -> None:
        """Raise if the budget has no room for a value of so many characters."""
        if size > self.left:
            raise _too_large()
        if size > _LARGE:
            self.look()

    def made(self, value: Any) -> Any:
        """Count a value that the template made, and return it."""
        kind = type(value)
        if kind is str:
            self.left -= len(value)
        elif kind is list or kind is tuple:
            self.left -= ITEM * len(value)
        if self.left < 0:
            raise _too_large()
        return value

    def count(self, numbers: range) -> range:
        """A range, of which one rendering may have no more than MOST_NUMBERS numbers in all."""
        self._numbers -= len(numbers)
        if self._numbers < 0:
            raise SecurityError(f"the template counts further than {MOST_NUMBERS:,} in all")
        return numbers

    def each(self, items: Any) -> Any:
        """The items of a loop, after they were counted."""
        try:
            self.step(len(items))
        except TypeError:
            return self._counted(items) if hasattr(items, "__next__") else items
        return items

    def _counted(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            self.step(1)
            yield item

    def listed(self, items: Any) -> list[Any]:
        """The items as a list, so that they can be counted before they are used."""
        if isinstance(items, str):
            self.need(len(items) * ITEM)
        return list(self.each(items))

    def weigh(self, value: Any) -> int:
        """How many characters the value has as text, at most; each object in it is a step."""
        if isinstance(value, str):
            return len(value)
        if type(value) in SCALARS:
            return _length_of(value)
        size, num_seen = 0, 0
        waiting = [value]
        while waiting:
            item = waiting.pop()
            num_seen += 1
            kind = type(item)
            if kind is str:
                size += _ESCAPED * len(item) + 4
            elif kind is dict:
                waiting += item
                waiting += item.values()
            elif kind is list:
                waiting += item
            else:
                waiting += _inside(item)
                size += _length_of(item)
            if num_seen & 1023 == 0:
                self.step(1024)
                self.need(size)
        self.step(num_seen & 1023)
        return size + 4 * num_seen

    def text(self, value: Any) -> str:
        """`str(value)` of a value that is not text. Bytes are refused: Python writes them as
        b'...', and a column of bytes was most often meant to be text."""
        if isinstance(value, bytes | bytearray | memoryview):
            raise TypeError("it holds bytes, which a model cannot read; make the column text")
        self.need(self.weigh(value))
        return str(value)


def _inside(value: Any) -> Iterable[Any]:
    """What else is written when a value is that is no plain list or dict."""
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set | frozenset | KeysView | ValuesView | ItemsView):
        return value
    if isinstance(value, Namespace):
        return [object.__getattribute__(value, _ATTRIBUTES)]
    return ()


def _length_of(value: Any) -> int:
    if isinstance(value, str):
        return _ESCAPED * len(value)
    if isinstance(value, int):
        return _SMALL + value.bit_length() // 3
    if isinstance(value, bytes | bytearray):
        return 4 * len(value) + 4
    return _SMALL


def _too_large() -> SecurityError:
    return SecurityError(f"the template makes more than {MOST_CHARACTERS:,} characters in all")
