"""What one replica has to do, and how fast it does it."""

from __future__ import annotations

from dataclasses import dataclass

from quire.replicas.task import Task

# Work of so many rows is taken on trust before a replica's own speed counts for more.
TRUSTED_ROWS = 4.0
MEMORY_SECONDS = 60.0  # what is known of a speed counts half after so long


@dataclass(slots=True)
class Out:
    """A row that a replica has, since when, and whether it was asked back."""

    task: Task
    since: float
    recalled: bool = False


class Load:
    """One replica's rows without an answer. `trial`: they are suspects, and stay where they are."""

    def __init__(self, capacity: int, now: float) -> None:
        self.capacity = capacity
        self.out: dict[int, Out] = {}
        self.cost = 0.0
        self.num_bytes = 0
        self.trial = False
        self._done, self._busy = 0.0, 0.0  # work that was answered, in seconds with rows
        self._since = now  # until when `_busy` is counted
        self._pace, self._num_paced = 0.0, 0  # seconds from sent to answered, for each of cost

    def send(self, task: Task, now: float) -> None:
        self._count(now)
        self.out[task.number] = Out(task, now)
        self.cost += task.cost
        self.num_bytes += task.size

    def land(self, number: int, now: float, *, answered: bool) -> Task | None:
        """The row is no longer here: it was answered, or taken away."""
        self._count(now)
        out = self.out.pop(number, None)
        if out is None:
            return None
        self.cost = self.cost - out.task.cost if self.out else 0.0
        self.num_bytes -= out.task.size
        if answered:
            self._done += out.task.cost
            pace = (now - out.since) / max(out.task.cost, 1e-9)
            self._num_paced = min(self._num_paced + 1, 32)
            self._pace += (pace - self._pace) / self._num_paced
        return out.task

    def _count(self, now: float) -> None:
        if self.out:
            self._busy += now - self._since
        self._since = now
        if self._busy > 2 * MEMORY_SECONDS:
            self._done, self._busy = self._done / 2, self._busy / 2

    def measured(self, now: float) -> tuple[float, float]:
        """Work that was answered, and the seconds it took."""
        self._count(now)
        return self._done, self._busy

    def speed(self, usual: float, mean_cost: float, now: float) -> float:
        """Work in a second; `usual` where little is known."""
        done, busy = self.measured(now)
        trusted = TRUSTED_ROWS * max(mean_cost, 1e-9)
        return (done + trusted) / (busy + trusted / max(usual, 1e-9))

    @property
    def pace(self) -> float | None:
        """Seconds from sent to answered, for each unit of cost; None while nothing is known."""
        return self._pace if self._num_paced else None
