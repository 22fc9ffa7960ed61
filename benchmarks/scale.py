"""How well many replicas are kept busy: the real feeder under a virtual clock.

    python -m benchmarks.scale            the table of docs/scale.md
    python -m benchmarks.scale --quick    a small part of it

A replica is a continuous batch: it runs `capacity` rows, a step takes fixed + row x rows seconds,
and a row ends after as many steps as it has tokens. Nothing is measured here: all figures are
simulated, and show what dealing, recalls, copies, chunks and claims gain or cost.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from quire.jobs.join.chunks import FINER, MOST_FINE
from quire.jobs.join.chunks import ROWS as CHUNK
from quire.replicas.feeder import Feeder
from quire.replicas.task import Task

LOOK = 0.1  # seconds between two looks at the end of a job, as in ReplicaSet


@dataclass(frozen=True, slots=True)
class Machine:
    """A replica's speed: seconds of a step, and for each row in it; `slower` is a factor."""

    capacity: int = 256
    fixed: float = 0.005
    row: float = 0.00004
    slower: float = 1.0

    def step(self, rows: int) -> float:
        return (self.fixed + self.row * rows) * self.slower

    def rows_per_second(self, mean_tokens: float) -> float:
        return self.capacity / (mean_tokens * self.step(self.capacity))


class Engine:
    """One replica under the virtual clock. `passed` counts the steps of its life."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.running: dict[int, float] = {}  # row -> the step at which it ends
        self.waiting: dict[int, float] = {}  # row -> its tokens
        self._ends: list[tuple[float, int]] = []
        self._passed, self._at = 0.0, 0.0

    def advance(self, now: float) -> None:
        if self.running:
            self._passed += (now - self._at) / self.machine.step(len(self.running))
        self._at = now

    def send(self, tasks: Iterable[tuple[int, float]]) -> None:
        self.waiting.update(tasks)
        self._start()

    def _start(self) -> None:
        while self.waiting and len(self.running) < self.machine.capacity:
            row = next(iter(self.waiting))
            end = self._passed + self.waiting.pop(row)
            self.running[row] = end
            heapq.heappush(self._ends, (end, row))

    def next_end(self) -> float:
        """When its next row is through."""
        while self._ends and self.running.get(self._ends[0][1]) != self._ends[0][0]:
            heapq.heappop(self._ends)  # it was given up
        if not self._ends:
            return math.inf
        left = max(0.0, self._ends[0][0] - self._passed)
        return self._at + left * self.machine.step(len(self.running))

    def finish(self) -> int:
        """The row that is through now."""
        end, row = heapq.heappop(self._ends)
        self._passed = max(self._passed, end)
        del self.running[row]
        self._start()
        return row

    def give_up(self, rows: Iterable[int], *, running: bool) -> list[int]:
        given = [row for row in rows if self.waiting.pop(row, None) is not None]
        if running:
            given += [row for row in rows if self.running.pop(row, None) is not None]
            self._start()
        return given


@dataclass(frozen=True, slots=True)
class Outcome:
    """`share` is the work of all rows in full batches, over what all replicas could have done."""

    seconds: float
    share: float
    num_copies: int
    num_recalled: int


class Simulation:
    """A job of rows with `tokens` each on these machines; the feeder sees `predicted`."""

    def __init__(
        self,
        machines: Sequence[Machine],
        tokens: Sequence[float],
        predicted: Callable[[int], float],
        *,
        beginnings: Sequence[int] | None = None,
    ) -> None:
        self._now = 0.0
        self._machines, self._tokens = machines, tokens
        self._feeder = Feeder(len(machines), clock=lambda: self._now)
        self._engines = [Engine(machine) for machine in machines]
        for number, machine in enumerate(machines):
            self._feeder.open(number, machine.capacity)
        self._rows = iter(range(len(tokens)))
        self._predicted, self._beginnings = predicted, beginnings
        self._events: list[tuple[float, int]] = []
        self._num_copies = self._num_recalled = 0
        self._next_look = 0.0
        self.answered_by: dict[int, int] = {}

    def run(self) -> Outcome:
        self._fill()
        while len(self._feeder):
            at, number = heapq.heappop(self._events)
            engine = self._engines[number]
            if engine.next_end() != at:
                continue  # the replica's batch has changed since
            self._now = at
            engine.advance(at)
            self._land(number, engine.finish())
            self._schedule(number)
            self._fill((number,))
            if at >= self._next_look:
                self._next_look = at + LOOK
                self._end_game()
        return self._outcome()

    def _fill(self, able: Sequence[int] | None = None) -> None:
        """Keep the pool full and deal what there is room for."""
        for row in self._rows if not self._feeder.exhausted else ():
            beginning = None if self._beginnings is None else self._beginnings[row]
            self._feeder.add(Task(row, self._predicted(row), beginning=beginning))
            if self._feeder.num_wanted <= 0:
                break
        else:
            self._feeder.exhausted = True
        while dealt := self._feeder.deal(able):
            for number, tasks in dealt.items():
                self._send(number, tasks)

    def _send(self, number: int, tasks: Sequence[Task]) -> None:
        engine = self._engines[number]
        engine.advance(self._now)
        engine.send((task.number, self._tokens[task.number]) for task in tasks)
        self._schedule(number)

    def _schedule(self, number: int) -> None:
        if (end := self._engines[number].next_end()) < math.inf:
            heapq.heappush(self._events, (end, number))

    def _land(self, number: int, row: int) -> None:
        task, others = self._feeder.take_answered(number, row)
        if task is not None:
            self.answered_by[row] = number
        for other in others:
            self._give_up(other, [row], running=True)

    def _give_up(self, number: int, rows: Sequence[int], *, running: bool) -> list[int]:
        engine = self._engines[number]
        engine.advance(self._now)
        given = engine.give_up(rows, running=running)
        self._schedule(number)
        return given

    def _end_game(self) -> None:
        for number, rows in self._feeder.recalls().items():
            given = self._give_up(number, rows, running=False)
            self._num_recalled += len(given)
            self._feeder.take_back(number, given)
        self._fill()
        for number, tasks in self._feeder.copies().items():
            self._num_copies += len(tasks)
            self._send(number, tasks)

    def _outcome(self) -> Outcome:
        tokens = sum(self._tokens)
        could = sum(m.capacity / m.step(m.capacity) for m in self._machines)
        share = tokens / (could * self._now) if self._now else 1.0
        return Outcome(self._now, share, self._num_copies, self._num_recalled)


def answers(total: float, mean: float, longest: float, seed: int = 1) -> list[float]:
    """Lengths of answers of so many tokens in all: many short, few long, none over `longest`."""
    rng, lengths = random.Random(seed), []
    while total > 0:
        lengths.append(max(1.0, min(longest, rng.expovariate(1 / mean))))
        total -= lengths[-1]
    return lengths


def job(
    replicas: int,
    seconds: float,
    *,
    machine: Machine = Machine(),  # noqa: B008 - frozen
    mean: float = 256.0,
    longest: float = 2048.0,
    noise: float | None = 0.2,
    slow: Sequence[float] = (),
    seed: int = 1,
) -> Outcome:
    """A job that takes each of so many replicas so long in full batches. `noise` is the error of
    predicted lengths, as a share; None: nothing is known of them. `slow` are factors of some."""
    machines = [
        Machine(machine.capacity, machine.fixed, machine.row, factor)
        for factor in [*slow, *([1.0] * (replicas - len(slow)))]
    ]
    per_second = sum(m.capacity / m.step(m.capacity) for m in machines)
    tokens = answers(per_second * seconds, mean, longest, seed)
    rng = random.Random(seed + 1)
    errors = [rng.uniform(1 - (noise or 0), 1 + (noise or 0)) for _ in tokens]
    known = (lambda row: tokens[row] * errors[row]) if noise is not None else (lambda row: mean)
    return Simulation(machines, tokens, known).run()


@dataclass(frozen=True, slots=True)
class Fleet:
    """Many workers of --join: rows a second of each, and what happens to them."""

    gpus: int
    rows_per_second: float = 40.0
    slow_share: float = 0.01  # of the workers, at half speed
    deaths_per_hour: float = 0.0  # of each worker: spot machines
    start_seconds: float = 120.0  # to load again after a death
    lease: float = 60.0


def claimed(fleet: Fleet, rows: float, chunk: int, *, split: int = 1, seed: int = 3) -> float:
    """The share of all GPUs' time that is work, where workers claim chunks one by one; their first
    start is not counted. The last rows are in chunks that are cut into `split` parts, as the real
    ones are."""
    rng = random.Random(seed)
    speeds = [
        fleet.rows_per_second * (0.5 if rng.random() < fleet.slow_share else 1.0)
        for _ in range(fleet.gpus)
    ]
    fine = min(rows / FINER, MOST_FINE * chunk) if split > 1 else 0
    whole = math.floor((rows - fine) / chunk)
    parts = [float(chunk)] * whole
    rest = rows - whole * chunk
    while rest > 0:
        parts.append(min(chunk / split, rest))
        rest -= chunk / split
    free = [(0.0, worker) for worker in range(fleet.gpus)]
    heapq.heapify(free)
    again: list[tuple[float, float]] = []  # chunks of dead workers: when they may be claimed
    end, queue = 0.0, iter(parts)
    for _ in range(len(parts) * 4):
        size = next(queue, None)
        if size is None:
            if not again:
                break
            ready, size = heapq.heappop(again)
        else:
            ready = 0.0
        at, worker = heapq.heappop(free)
        at = max(at, ready)
        seconds = size / speeds[worker]
        death = rng.expovariate(fleet.deaths_per_hour / 3600) if fleet.deaths_per_hour else math.inf
        if death < seconds:
            done = size * death / seconds
            heapq.heappush(again, (at + death + fleet.lease, size - done))
            heapq.heappush(free, (at + death + fleet.start_seconds, worker))
            continue
        end = max(end, at + seconds)
        heapq.heappush(free, (at + seconds, worker))
    could = sum(speeds)
    return rows / (could * end)


def shards(fleet: Fleet, rows: float) -> float:
    """The same where each worker has an equal part of the rows from the start (--shard)."""
    per_worker = rows / fleet.gpus
    slowest = 0.5 if fleet.slow_share else 1.0
    end = per_worker / (fleet.rows_per_second * slowest)
    could = fleet.gpus * fleet.rows_per_second * (1 - fleet.slow_share / 2)
    return rows / (could * end)


def print_replicas(quick: bool) -> None:
    print("replicas  seconds each  lengths known  unknown  one 4x slower")
    small = Machine(capacity=64, fixed=0.02, row=0.0002)
    for replicas in (2, 8) if quick else (2, 8, 64):
        for seconds in (60.0, 120.0) if quick else (60.0, 120.0, 600.0):
            known = job(replicas, seconds, machine=small, longest=1024.0)
            unknown = job(replicas, seconds, machine=small, longest=1024.0, noise=None)
            slow = job(replicas, seconds, machine=small, longest=1024.0, slow=[4.0])
            print(
                f"{replicas:8}  {seconds:12.0f}  {known.share:13.3f}  {unknown.share:7.3f}  "
                f"{slow.share:13.3f}",
                flush=True,
            )


def print_fleets(quick: bool) -> None:
    print("GPUs   rows  --shard  chunks  last in eighths  spot, 5 % an hour")
    for gpus, rows in ((8, 1e6), (64, 1e7), (1000, 1e7), (1000, 1e9))[: 2 if quick else 4]:
        fleet = Fleet(gpus)
        spot = Fleet(gpus, deaths_per_hour=0.05)
        even, finer = claimed(fleet, rows, CHUNK), claimed(fleet, rows, CHUNK, split=FINER)
        print(
            f"{gpus:4}  {rows:5.0e}  {shards(fleet, rows):7.3f}  {even:6.3f}  {finer:15.3f}  "
            f"{claimed(spot, rows, CHUNK, split=FINER):17.3f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    print_replicas(quick)
    print_fleets(quick)


if __name__ == "__main__":
    main()
