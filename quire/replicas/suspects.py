"""Finding the row that brings the engine down: by halves, each half a run of its own.

A half that finishes is cleared, and its answers count. A row is the culprit when the engine fell
twice with it alone on board: once may have any cause.

64 rows on board, one culprit: 32, 16, 8, 4, 2, 1 and once more: the engine fails 8 times.
"""

from __future__ import annotations

from quire.replicas.task import Task

STRIKES = 2


class Suspects:
    """Groups of rows that are still to be cleared, the narrowest first."""

    def __init__(self) -> None:
        self._groups: list[list[Task]] = []
        self._strikes: dict[int, int] = {}

    def accuse(self, rows: list[Task], *, others: bool = False) -> Task | None:
        """The engine failed with these rows running, and maybe with others that are answered
        elsewhere. The culprit, if that is now certain."""
        if len(rows) == 1 and others:
            self._groups.append(rows)
        elif len(rows) == 1:
            [row] = rows
            self._strikes[row.number] = self._strikes.get(row.number, 0) + 1
            if self._strikes[row.number] >= STRIKES:
                return row
            self._groups.append(rows)
        elif rows:
            half = len(rows) // 2
            self._groups += [rows[half:], rows[:half]]
        return None

    def take(self) -> list[Task] | None:
        """The next group to try, if any."""
        return self._groups.pop() if self._groups else None

    def join(self, other: Suspects) -> None:
        """Take over all that is still to be tried elsewhere."""
        self._groups += other._groups
        for row, strikes in other._strikes.items():
            self._strikes[row] = self._strikes.get(row, 0) + strikes
        other._groups.clear()
        other._strikes.clear()

    def clear(self) -> list[Task]:
        """All rows that are left, for another replica to try."""
        rows = [row for group in self._groups for row in group]
        self._groups.clear()
        return rows

    def __len__(self) -> int:
        return sum(len(group) for group in self._groups)
