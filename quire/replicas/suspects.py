"""Finds the row that ends the engine: suspects are tried in halves, each half in a run of its own.

A half that finishes is cleared, and its answers count. A row is the culprit if engines died with it
alone running, at least twice, and sooner than other causes of engines' deaths here explain. How
often these occur is known from deaths in which the row had no part.

64 rows running, one culprit: 32, 16, 8, 4, 2, 1 and once more: the engine fails 8 times. It takes
more tries where other causes end engines, too: deaths after half a second alone prove much where
engines otherwise live for an hour, and little where one is killed every second.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from quire.replicas.task import Task

STRIKES = 2  # once may have any cause
# After so many deaths with it alone, a row fails whatever the cause. With the halves of 512 rows
# before, that is fewer restarts than replicas and servers allow an engine.
MOST_STRIKES = 6
CHANCE = 1e-3  # of deaths this soon without the row's fault; below it, the row is the culprit
RECENT = 16  # deaths from which it is known how often engines die here now


@dataclass(frozen=True, slots=True)
class Death:
    """How an engine ended: seconds since it was ready, and since it got the rows that it ran."""

    life: float
    run: float
    others: bool = False  # rows that are not suspected were running, too
    outside: bool = False  # nothing that it computed can have been the cause


@dataclass(frozen=True, slots=True)
class _Life:
    seconds: float
    rows: frozenset[int]  # rows that may have ended it


class Suspects:
    """Groups of rows that are still to be tried, the smallest first."""

    def __init__(self) -> None:
        self._groups: list[list[Task]] = []
        # Row -> seconds that engines lived with it alone; infinite if it was not the cause.
        self._alone: dict[int, list[float]] = {}
        self._lives: deque[_Life] = deque(maxlen=RECENT)

    def accuse(self, rows: list[Task], death: Death) -> Task | None:
        """The engine failed with these rows running. Returns the culprit, if it is certain now."""
        blamed = frozenset(() if death.outside else (row.number for row in rows))
        self._lives.append(_Life(death.life, blamed))
        if len(rows) != 1:
            self.suspect(rows)
            return None
        [row] = rows
        if not death.others:
            seconds = math.inf if death.outside else death.run
            self._alone.setdefault(row.number, []).append(seconds)
            if self._is_culprit(row.number):
                # Deaths caused by this row must not count for other rows.
                left = (life for life in self._lives if row.number not in life.rows)
                self._lives = deque(left, maxlen=RECENT)
                return row
        self._groups.append(rows)
        return None

    def suspect(self, rows: list[Task]) -> None:
        """Try these rows, in halves."""
        half = len(rows) // 2
        self._groups += [group for group in (rows[half:], rows[:half]) if group]

    def times_alone(self, row: Task) -> int:
        """How many engines died with this row alone running."""
        return len(self._alone.get(row.number, ()))

    def _is_culprit(self, row: int) -> bool:
        alone = self._alone[row]
        if len(alone) >= MOST_STRIKES:
            return True
        strikes = [seconds for seconds in alone if seconds < math.inf]
        deaths = _deaths_per_second([one.seconds for one in self._lives if row not in one.rows])
        chance = math.prod(-math.expm1(-deaths * seconds) for seconds in strikes)
        return len(strikes) >= STRIKES and chance < CHANCE

    def take(self) -> list[Task] | None:
        """The next group to try; None if there is none."""
        return self._groups.pop() if self._groups else None

    def join(self, other: Suspects) -> None:
        """Take over everything that is still to be tried from another replica."""
        self._groups += other._groups
        for row, seconds in other._alone.items():
            self._alone.setdefault(row, []).extend(seconds)
        other._groups.clear()
        other._alone.clear()

    def clear(self) -> list[Task]:
        """Remove and return all rows that are left, for another replica to try."""
        rows = [row for group in self._groups for row in group]
        self._groups.clear()
        return rows

    def __len__(self) -> int:
        return sum(len(group) for group in self._groups)


def _deaths_per_second(lives: Collection[float]) -> float:
    """How often engines with such lives die: by the last of them or by all, whichever is more.
    Hours without deaths say nothing about a minute in which engines are killed. 0 if none died.

    [3600, 1, 1] -> 1.0
    """
    total, worst = 0.0, 0.0
    for count, seconds in enumerate(reversed([*lives]), 1):
        total += seconds
        worst = max(worst, count / max(total, 1e-3))
    return worst
