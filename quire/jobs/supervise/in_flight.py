"""The rows that were sent to the engine and have no answer yet."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from quire.jobs.input.work import WorkRow


class InFlight:
    """Rows by number, and how many bytes they are together."""

    def __init__(self) -> None:
        self._rows: dict[int, WorkRow] = {}
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    def send(self, rows: Sequence[WorkRow]) -> None:
        for row in rows:
            self._rows[row.row] = row
            self.num_bytes += row.size

    def land(self, number: int) -> WorkRow | None:
        """The row with this number came back; None if nobody waits for it."""
        row = self._rows.pop(number, None)
        self.num_bytes -= row.size if row is not None else 0
        return row

    def lose(self, held: Collection[int]) -> tuple[list[WorkRow], list[WorkRow]]:
        """Forget them all: those that were `held` on board, and the others."""
        rows = list(self._rows.values())
        self._rows.clear()
        self.num_bytes = 0
        running = [row for row in rows if row.row in held]
        return running, [row for row in rows if row.row not in held]
