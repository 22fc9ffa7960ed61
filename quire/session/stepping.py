"""Requests of a caller with a loop of its own: added one by one, computed a step at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from quire.outputs import RequestOutput
from quire.params.pooling import PoolingParams
from quire.request import Request
from quire.run import Run


@dataclass(eq=False, slots=True)
class Added:
    """A request; `pooled` are its parameters if hidden states are wanted."""

    request_id: str
    request: Request
    pooled: PoolingParams | None


class Stepping:
    """The unfinished requests of a session; dropped when none is left."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._new: list[Added] = []
        self._by_id: dict[str, Added] = {}
        self._by_place: dict[int, Added] = {}
        self._num_entered = 0
        self._made: list[tuple[Added, RequestOutput]] = []

    @property
    def num_unfinished(self) -> int:
        return len(self._by_id)

    def has(self, request_id: str) -> bool:
        return request_id in self._by_id

    def add(self, added: Added) -> None:
        self._by_id[added.request_id] = added
        self._new.append(added)

    def abort(self, request_ids: Iterable[str]) -> None:
        for name in request_ids:
            if (added := self._by_id.pop(name, None)) is None:
                continue
            if added in self._new:
                self._new.remove(added)
            else:
                self._run.cancel(added.request.number)

    def compute(self) -> None:
        """Compute one step; its outputs are kept until `take`."""
        new, self._new = self._new, []
        for added in new:
            self._by_place[self._num_entered] = added
            self._num_entered += 1
        for place, output in self._run.step([added.request for added in new]):
            added = self._by_place[place]
            if output.finished:
                del self._by_place[place]
            if added.request_id not in self._by_id:  # given up meanwhile
                continue
            if output.finished:
                del self._by_id[added.request_id]
            output.request_id = added.request_id
            self._made.append((added, output))

    def take(self) -> list[tuple[Added, RequestOutput]]:
        made, self._made = self._made, []
        return made

    def is_over(self) -> bool:
        """Whether no request is left. If so, waits for plans in flight that were made for requests
        that have ended."""
        if not self._by_id:
            while not self._run.is_empty:
                self._run.step([])
        return not self._by_id
