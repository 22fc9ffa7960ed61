"""Counters of all engines of a server, which keep growing when an engine is replaced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class EngineTotals:
    """Sums over the engines that ended and the one that runs."""

    def __init__(self) -> None:
        self.step_limits: tuple[str, ...] = ()
        self._ended: list[float] = []
        self._last: list[float] = []

    def take(self, facts: Mapping[str, Any]) -> None:
        """Read the counters of the running engine."""
        self.step_limits = tuple(facts.get("step_limits", ()))
        self._last = [float(facts.get("preemptions", 0)), *facts.get("step_tokens", ())]

    def engine_ended(self) -> None:
        self._ended, self._last = self._sums(), []

    def _sums(self) -> list[float]:
        if not (self._ended and self._last):
            return self._last or self._ended
        return [one + other for one, other in zip(self._ended, self._last, strict=True)]

    @property
    def preemptions(self) -> int:
        return int(self._sums()[0]) if self._sums() else 0

    @property
    def step_tokens(self) -> tuple[float, ...]:
        """For each limit, how many steps had at most so many tokens; then the sum of all tokens."""
        return tuple(self._sums()[1:])
