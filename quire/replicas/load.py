"""The rows of one replica, and how fast it answers them."""

from __future__ import annotations

from dataclasses import dataclass

from quire.replicas.task import Task

# A replica's own speed counts as if so many more rows had been answered at the usual speed.
TRUSTED_ROWS = 4.0
MEMORY_SECONDS = 60.0  # after so long, earlier measurements count half


@dataclass(slots=True)
class Out:
    """A row that a replica has, and when it probably began to run; None while it waits there."""

    task: Task
    began: float | None = None


class Load:
    """One replica's rows without an answer. `trial`: they are suspects, and stay there."""

    def __init__(self, capacity: int, now: float) -> None:
        self.capacity = capacity
        self.out: dict[int, Out] = {}
        self.waiting: dict[int, Out] = {}  # rows of `out` that wait, in the order they will run
        self.cost = 0.0
        self.num_bytes = 0
        self.trial = False
        self._done, self._busy = 0.0, 0.0  # answered work, and seconds in which it had rows
        self.opened = self.run_began = now
        self._since = now  # the time up to which `_busy` is counted
        self._row_seconds = 0.0  # the sum over all rows that ran

    def send(self, task: Task, now: float) -> None:
        self._count(now)
        out = self.out[task.number] = Out(task)
        if len(self.out) - len(self.waiting) <= self.capacity:
            out.began = now
        else:
            self.waiting[task.number] = out
        self.cost += task.cost
        self.num_bytes += task.size

    def remove(self, number: int, now: float, *, answered: bool) -> Task | None:
        """The row is gone from here: it was answered, or taken away."""
        self._count(now)
        out = self.out.pop(number, None)
        if out is None:
            return None
        if self.waiting.pop(number, None) is None and self.waiting:
            following = self.waiting.pop(next(iter(self.waiting)))
            following.began = now
        self.cost = self.cost - out.task.cost if self.out else 0.0
        self.num_bytes -= out.task.size
        if answered:
            self._done += out.task.cost
        return out.task

    def _count(self, now: float) -> None:
        if self.out:
            self._busy += now - self._since
            self._row_seconds += (now - self._since) * (len(self.out) - len(self.waiting))
        self._since = now
        if self._busy > 2 * MEMORY_SECONDS:
            self._done, self._busy = self._done / 2, self._busy / 2
            self._row_seconds /= 2

    def measured(self, now: float) -> tuple[float, float]:
        """Answered work, and the seconds it took."""
        self._count(now)
        return self._done, self._busy

    def speed(self, usual: float, mean_cost: float, now: float) -> float:
        """Work per second; close to `usual` while little was measured."""
        done, busy = self.measured(now)
        trusted = TRUSTED_ROWS * max(mean_cost, 1e-9)
        return (done + trusted) / (busy + trusted / max(usual, 1e-9))

    @property
    def pace(self) -> float | None:
        """Seconds per unit of cost that a row runs; None before the first answer. The time of rows
        that still run is included: short rows end first, and would make every replica look
        fast."""
        return self._row_seconds / self._done if self._done and self._row_seconds else None
