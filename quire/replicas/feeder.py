"""Which replica gets which row, and when a row moves to another replica.

Rows are dealt out step by step: each goes to the replica with the least predicted seconds of work,
the longest row first, and a replica holds few more rows than it runs. Rows with a common beginning
stay on one replica until they are more than an equal share of what is left. Near the end, rows that
have not begun are recalled from the busiest replicas, and a replica with free places also runs rows
that another is late with: the first result counts.

Knows nothing of processes: `Feeder` decides, and `ReplicaSet`, or the simulation of
benchmarks/scale.py, acts.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Collection, Iterable

from quire.replicas.load import Load, Out
from quire.replicas.pool import Pool
from quire.replicas.task import Task

# A replica holds so many times the rows that it runs at once. A single replica orders its rows by
# itself, and needs to see more of them.
DEPTH, DEPTH_ALONE = 2, 6
FEWEST_OUT, FEWEST_OUT_ALONE = 4, 64
# Rows that wait here to be dealt: enough to find the long ones, and small beside an engine.
POOL_ROWS, POOL_BYTES = 32_768, 32 << 20
IN_FLIGHT_BYTES = 64 << 20
DEAL_ROWS = 256  # to one replica at a time, so that messages are handled in between
SPEEDS_SECONDS = 0.1  # how long measured speeds are used before they are measured again


class Feeder:
    """Deals rows to `num_replicas` replicas, numbered from 0, which open and close."""

    def __init__(self, num_replicas: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._num_replicas, self._clock = num_replicas, clock
        self._loads: dict[int, Load] = {}
        self._pool = Pool(in_order=num_replicas == 1)
        self._speeds_known: tuple[float, dict[int, float]] = (-math.inf, {})
        self._copied: set[int] = set()  # rows that two replicas have, or had
        self._recalled: set[int] = set()  # rows that were recalled once
        self._recalling: set[int] = set()  # replicas whose answer to a recall is awaited
        self.exhausted = False  # no more rows will be added

    # What is known.

    def __len__(self) -> int:
        """Rows without an answer."""
        return len(self._pool) + self.num_out

    @property
    def num_out(self) -> int:
        return sum(len(load.out) for load in self._loads.values())

    @property
    def num_waiting(self) -> int:
        """Rows that no replica has."""
        return len(self._pool)

    @property
    def num_wanted(self) -> int:
        """How many more rows to add now; 0 if there are enough to choose from. A single replica
        needs no choice: it gets as many as it can hold."""
        if self._num_replicas == 1:
            out = sum(load.num_bytes for load in self._loads.values())
            room = sum(self._room(load) for load in self._loads.values()) - len(self._pool)
            return 0 if out + self._pool.num_bytes > IN_FLIGHT_BYTES else room
        return 0 if self._pool.num_bytes > POOL_BYTES else POOL_ROWS - len(self._pool)

    def _room(self, load: Load) -> int:
        if self._num_replicas == 1:
            most = max(FEWEST_OUT_ALONE, DEPTH_ALONE * load.capacity)
        else:
            most = max(FEWEST_OUT, DEPTH * load.capacity)
        return max(0, most - len(load.out))

    # Replicas open and close.

    def open(self, replica: int, capacity: int) -> None:
        """The replica is ready, and runs `capacity` rows at once."""
        self._loads[replica] = Load(capacity, self._clock())

    def lose(self, replica: int, running: Collection[int]) -> list[Task]:
        """The replica died. Its rows that were not running are dealt again; those that were are
        returned, except rows that another replica has as well."""
        load = self._loads.pop(replica, None)
        self._recalling.discard(replica)
        self._pool.forget(replica)
        if load is None:
            return []
        mine = [out.task for n, out in load.out.items() if not self._has_it_elsewhere(n)]
        suspects = [task for task in mine if task.number in running]
        if load.trial and not suspects:  # it died before it could write which rows it ran
            return mine
        for task in reversed(mine):  # the row that is put back last is taken first
            if task.number not in running:
                self._pool.put(task, back=True)
        return suspects

    def end_run(self, replica: int) -> None:
        """The replica has finished its run; rows without an answer are dealt again."""
        if (load := self._loads.get(replica)) is not None:
            load.trial, load.run_began = False, self._clock()
            self.take_back(replica, list(load.out))

    def seconds(self, replica: int) -> tuple[float, float] | None:
        """Seconds since the replica was ready, and since its run began; None if it is not ready."""
        load, now = self._loads.get(replica), self._clock()
        return None if load is None else (now - load.opened, now - load.run_began)

    def remove_replica(self) -> None:
        """One replica is gone for good: the others' shares grow."""
        self._num_replicas -= 1

    def _has_it_elsewhere(self, number: int) -> bool:
        return number in self._copied and any(number in o.out for o in self._loads.values())

    # Rows are added, and answers come.

    def add(self, task: Task, *, back: bool = False) -> None:
        self._pool.put(task, back=back)

    def hold(self, replica: int, tasks: Iterable[Task]) -> None:
        """Try these rows on this replica only; they stay there."""
        load, now = self._loads[replica], self._clock()
        load.trial, load.run_began = True, now
        for task in tasks:
            load.send(task, now)

    def take_answered(self, replica: int, number: int) -> tuple[Task | None, list[int]]:
        """A replica answered a row. Returns the row if it had no answer yet, and the other replicas
        that have it, which may cancel it."""
        load = self._loads.get(replica)
        task = None if load is None else load.remove(number, self._clock(), answered=True)
        if task is None:
            return None, []
        if number not in self._copied:
            return task, []
        self._copied.discard(number)
        others = [
            other
            for other, load in self._loads.items()
            if load.remove(number, self._clock(), answered=False) is not None
        ]
        return task, others

    def take_back(self, replica: int, numbers: Iterable[int]) -> None:
        """A replica gave back rows that it had not begun."""
        self._recalling.discard(replica)
        load = self._loads.get(replica)
        for number in reversed(list(numbers)):
            task = None if load is None else load.remove(number, self._clock(), answered=False)
            if task is not None and not self._has_it_elsewhere(number):
                self._pool.put(task, back=True)

    def abandon(self) -> dict[int, list[int]]:
        """Forget every row; returns which rows each replica has."""
        now, had = self._clock(), dict[int, list[int]]()
        for replica, load in self._loads.items():
            had[replica] = list(load.out)
            for number in had[replica]:
                load.remove(number, now, answered=False)
        for known in (self._copied, self._recalled, self._recalling):
            known.clear()
        self._pool = Pool(in_order=self._num_replicas == 1)
        return {replica: rows for replica, rows in had.items() if rows}

    # Dealing.

    def deal(self, able: Collection[int] | None = None) -> dict[int, list[Task]]:
        """Rows to send now, by replica; only to replicas that are `able` to take some."""
        if not len(self._pool) or not self._loads:
            return {}
        speeds = self._speeds()
        ready = [
            (load.cost / speeds[replica], replica)
            for replica, load in self._loads.items()
            if not load.trial and (able is None or replica in able) and self._room(load)
        ]
        if not ready:
            return {}
        heapq.heapify(ready)
        fair_end, most_shared = self._fair_end(speeds), self._pool.cost / self._num_replicas
        num_bytes = sum(load.num_bytes for load in self._loads.values())
        given: dict[int, list[Task]] = {}
        now = self._clock()
        while ready and len(self._pool):
            seconds, replica = heapq.heappop(ready)
            load, mine = self._loads[replica], given.setdefault(replica, [])
            if len(mine) >= DEAL_ROWS or not self._room(load):
                continue
            if load.out and (seconds > fair_end or num_bytes > IN_FLIGHT_BYTES):
                continue
            task = self._pool.take(replica, most_shared=most_shared)
            if task is None:
                continue
            load.send(task, now)
            mine.append(task)
            num_bytes += task.size
            heapq.heappush(ready, (load.cost / speeds[replica], replica))
        return {replica: tasks for replica, tasks in given.items() if tasks}

    def _speeds(self) -> dict[int, float]:
        """Work per second of each replica; at first all are assumed to be equally fast."""
        now = self._clock()
        at, known = self._speeds_known
        if now - at < SPEEDS_SECONDS and known.keys() == self._loads.keys():
            return known
        measured = [load.measured(now) for load in self._loads.values()]
        done, busy = (sum(each) for each in zip(*measured, strict=True))
        usual = done / busy if done and busy else 1.0
        num_rows = max(1, len(self))
        mean_cost = (self._pool.cost + sum(load.cost for load in self._loads.values())) / num_rows
        speeds = {r: load.speed(usual, mean_cost, now) for r, load in self._loads.items()}
        self._speeds_known = now, speeds
        return speeds

    def _fair_end(self, speeds: dict[int, float]) -> float:
        """Seconds until all replicas, those still loading included, would end together. When all
        rows are known, no replica gets work beyond that."""
        if not self.exhausted or self._num_replicas == 1:
            return math.inf
        left = self._pool.cost + sum(load.cost for load in self._loads.values())
        usual = sum(speeds.values()) / len(speeds)
        missing = max(0, self._num_replicas - len(speeds))
        return left / (sum(speeds.values()) + missing * usual)

    # The end of a job.

    def recalls(self) -> dict[int, list[int]]:
        """Rows to recall, by replica: rows that wait where they would end later than `_fair_end`.
        A row is recalled once, and a replica has one open recall at a time."""
        if not self.exhausted or len(self._loads) < 2:
            return {}
        speeds = self._speeds()
        fair_end, asked = self._fair_end(speeds), dict[int, list[int]]()
        for replica, load in self._loads.items():
            if load.trial or replica in self._recalling or not load.waiting:
                continue
            excess = load.cost - fair_end * speeds[replica]
            rows = _up_to(excess, load.waiting.values(), self._recalled)
            if rows:
                asked[replica] = rows
                self._recalling.add(replica)
                self._recalled.update(rows)
        return asked

    def copies(self, able: Collection[int] | None = None) -> dict[int, list[Task]]:
        """Rows that a replica with half of its places free should run, too, because another is
        late with them."""
        if not self._is_ending() or self._recalling or len(self._loads) < 2:
            return {}
        given: dict[int, list[Task]] = {}
        for replica, load in self._loads.items():
            free = load.capacity - len(load.out)
            if 2 * free < load.capacity or load.trial or not (able is None or replica in able):
                continue
            for task in self._late_rows(replica)[:free]:
                load.send(task, self._clock())
                self._copied.add(task.number)
                given.setdefault(replica, []).append(task)
        return given

    def _is_ending(self) -> bool:
        return self.exhausted and not len(self._pool)

    def _late_rows(self, replica: int) -> list[Task]:
        """Rows of other replicas that this one would probably answer first, the latest first."""
        paces = [load.pace for load in self._loads.values() if load.pace is not None]
        if not paces:
            return []
        usual = sorted(paces)[len(paces) // 2]
        mine = self._loads[replica].pace or usual
        now, late = self._clock(), []
        for other, load in self._loads.items():
            if other == replica or load.trial:
                continue
            pace = usual if load.pace is None else load.pace
            for number, out in load.out.items():
                passed = 0.0 if out.began is None else (now - out.began) / pace
                ahead = _seconds_ahead(out.task.cost, passed, pace, mine)
                if ahead > 0 and number not in self._copied:
                    late.append((ahead, number, out.task))
        return [task for _, _, task in sorted(late, key=lambda each: each[0], reverse=True)]


def _seconds_ahead(cost: float, passed: float, pace: float, mine: float) -> float:
    """How many seconds earlier a second replica would answer a row than the one that has it, where
    it has done `passed` of `cost`. Predictions are rough: half of the cost may be left however far
    it is, and a row that took twice its cost is assumed to be stuck."""
    whole = max(cost, passed + cost / 2)
    if passed > 2 * cost:
        return passed * pace
    return (whole - passed) * pace - whole * mine


def _up_to(cost: float, rows: Collection[Out], not_these: Collection[int]) -> list[int]:
    """The last rows that together have at most this much work."""
    taken = []
    for out in reversed(list(rows)):
        if cost < out.task.cost:
            break
        if out.task.number not in not_these:
            cost -= out.task.cost
            taken.append(out.task.number)
    return taken
