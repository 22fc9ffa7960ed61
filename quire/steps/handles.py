"""What plans and results name and cannot hold: things that belong to this process.

Plans and results are plain data (step.py), so that they can go to another process or into a file.
A request's own code, LoRA adapters, masks that threads are still filling, and logits that are with
their processors are named there by a number, and found here. An executor owns one of these.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, Protocol
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from quire.request import Request
from quire.step import Masks
from quire.steps.automata import AutomatonRoom


class HeldLogits(Protocol):
    """The logits of a row, while the row's processors are at work on them."""

    def done(self) -> bool:
        """Whether the row can draw from them: a later plan may name it in `released`."""

    def wait(self, seconds: float) -> None:
        """Until these or others are done, at most so long."""


def _no_adapter(number: int) -> Any:
    raise LookupError(f"adapter {number}: this engine was made without adapters")


def _plain_masks(num_rows: int, num_words: int) -> npt.NDArray[np.uint32]:
    return np.empty((num_rows, num_words), np.uint32)


class Handles:
    """Numbers, and what they stand for."""

    def __init__(self) -> None:
        # By the request's own number, for as long as the request is held.
        self._requests: WeakValueDictionary[int, Request] = WeakValueDictionary()
        self._filling: dict[int, Callable[[], object]] = {}
        self._held: dict[int, HeldLogits] = {}
        self._numbers = count(1)
        # Room for masks [rows, words]; an executor may know better memory for them.
        self.new_masks: Callable[[int, int], npt.NDArray[np.uint32]] = _plain_masks
        # Room for grammars that the executor's device follows by itself, if it can.
        self.automata: AutomatonRoom | None = None
        # What a LoRA adapter adds (adapters/read.py), by its number.
        self.adapter: Callable[[int], Any] = _no_adapter
        # Why the executor's device has no room for it, by its number; "" where it has.
        self.lacks_room: Callable[[int], str] = lambda _: ""

    def add_request(self, request: Request) -> None:
        self._requests[request.number] = request

    def request(self, number: int) -> Request:
        return self._requests[number]

    def filling(self, wait: Callable[[], object]) -> int:
        """A ticket for masks that are being filled; `wait` returns when they are."""
        ticket = next(self._numbers)
        self._filling[ticket] = wait
        return ticket

    def wait_for(self, masks: Masks) -> None:
        """Until the bits of these masks may be read."""
        wait = self._filling.get(masks.ticket)
        if wait is not None:
            wait()
            self._filling.pop(masks.ticket, None)

    def hold(self, logits: HeldLogits) -> int:
        number = next(self._numbers)
        self._held[number] = logits
        return number

    def held(self, number: int) -> HeldLogits:
        return self._held[number]

    def drop_held(self, number: int) -> None:
        self._held.pop(number, None)

    def clear(self) -> None:
        """Forget masks and logits of plans that will not be run, and whose grammars are followed;
        requests go by themselves."""
        self._filling.clear()
        self._held.clear()
        if self.automata is not None:
            self.automata.release_all()
