"""Things that plans and results name by number, because they belong to this process.

Plans and results are plain data (step.py), so that they can go to another process or into a file.
They name by number: a request's own code, LoRA adapters, masks that threads are still filling, and
logits that are with their processors. An executor owns a Handles, which finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import count
from typing import Any, Protocol
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from quire.request import Request
from quire.step import Masks
from quire.steps.automata import AutomatonRoom


class HeldLogits(Protocol):
    """The logits of a row while the row's processors work on them."""

    def done(self) -> bool:
        """Whether the row can draw from them: a later plan may name it in `released`."""

    def wait(self, seconds: float) -> None:
        """Wait until these or other held logits are done, for at most `seconds`."""


class Exchange(Protocol):
    """Exchanges weights of a model whose files were read (executor/new_weights.py)."""

    def load(self, named: Iterable[tuple[str, Any]]) -> set[str]:
        """Write tensors, and return the names of those written."""

    def written(self, names: Collection[str]) -> Iterable[tuple[str, Any]]:
        """Those of the named tensors of which anything was written, as they are now."""


def _no_adapter(number: int) -> Any:
    raise LookupError(f"adapter {number}: this engine was made without adapters")


def _plain_masks(num_rows: int, num_words: int) -> npt.NDArray[np.uint32]:
    return np.empty((num_rows, num_words), np.uint32)


class Handles:
    """Finds things by their numbers."""

    def __init__(self) -> None:
        # By the request's own number, as long as something else holds the request.
        self._requests: WeakValueDictionary[int, Request] = WeakValueDictionary()
        self._filling: dict[int, Callable[[], object]] = {}
        self._held: dict[int, HeldLogits] = {}
        self._numbers = count(1)
        # Makes arrays for masks [rows, words]; an executor may set a better kind of memory.
        self.new_masks: Callable[[int, int], npt.NDArray[np.uint32]] = _plain_masks
        # Room for grammars that the executor's device follows by itself, if it can.
        self.automata: AutomatonRoom | None = None
        # Returns what the LoRA adapter of a number adds (adapters/read.py).
        self.adapter: Callable[[int], Any] = _no_adapter
        # Why the executor's device has no room for the adapter of a number; "" if it has.
        self.lacks_room: Callable[[int], str] = lambda _: ""
        # What writes other weights into the model; None before the first of them.
        self.exchange: Exchange | None = None

    def add_request(self, request: Request) -> None:
        self._requests[request.number] = request

    def request(self, number: int) -> Request:
        return self._requests[number]

    def filling(self, wait: Callable[[], object]) -> int:
        """A ticket for masks that are being filled; `wait` returns when they are filled."""
        ticket = next(self._numbers)
        self._filling[ticket] = wait
        return ticket

    def wait_for(self, masks: Masks) -> None:
        """Wait until the bits of these masks may be read."""
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
        """Drop masks and logits of plans that will not be run, and count no rows on grammars;
        requests are dropped when nothing else holds them."""
        self._filling.clear()
        self._held.clear()
        if self.automata is not None:
            self.automata.release_all()
