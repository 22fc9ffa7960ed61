"""Rows that no replica has yet: the longest first, rows with a common beginning together.

A row that shares its beginning with none is a group of its own, so one rule serves both.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from itertools import count

from quire.replicas.task import Task

REMEMBERED = 4096  # empty groups whose homes are remembered


@dataclass(slots=True)
class Group:
    """Rows with a common beginning, the longest first; `homes` are the replicas that have this
    beginning in their caches."""

    name: Hashable
    tasks: list[tuple[float, int, Task]] = field(default_factory=list)  # a heap
    cost: float = 0.0
    homes: set[int] = field(default_factory=set)

    @property
    def longest(self) -> float:
        return -self.tasks[0][0]


class Pool:
    """Groups of rows, by their longest row. Of equals, rows that were put back are taken first."""

    def __init__(self, *, in_order: bool = False) -> None:
        """`in_order`: keep the order of adding, for a single replica, which orders rows itself."""
        self._in_order = in_order
        self._groups: dict[Hashable, Group] = {}
        self._heap: list[tuple[float, int, Hashable]] = []  # entries may be stale
        self._at_home: dict[int, dict[Hashable, Group]] = {}  # replica -> groups, oldest first
        self._last_homes: dict[Hashable, set[int]] = {}  # of empty groups, oldest first
        self._ticket, self._ticket_back = count(1), count(-1, -1)
        self.num_tasks, self.num_bytes, self.cost = 0, 0, 0.0

    def __len__(self) -> int:
        return self.num_tasks

    def put(self, task: Task, *, back: bool = False) -> None:
        """Add a row; `back`: a replica had it before."""
        alone = self._in_order or task.beginning is None
        name: Hashable = ("row", task.number) if alone else task.beginning
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = Group(name)
            for replica in self._last_homes.pop(name, ()):
                self._settle(group, replica)
        ticket = next(self._ticket_back if back else self._ticket)
        was = group.longest if group.tasks else -1.0
        rank = 0.0 if self._in_order else task.cost
        heapq.heappush(group.tasks, (-rank, ticket, task))
        group.cost += task.cost
        self.num_tasks, self.num_bytes = self.num_tasks + 1, self.num_bytes + task.size
        self.cost += task.cost
        if rank > was:
            heapq.heappush(self._heap, (-rank, ticket, name))

    def take(self, replica: int, *, most_shared: float) -> Task | None:
        """The next row for this replica: of a group whose beginning it has, else of the group with
        the longest row. A group that is at home on another replica is left there, unless it is more
        work than `most_shared`; then this replica computes the beginning once more."""
        group = self._own(replica) or self._free(replica, most_shared)
        if group is None:
            return None
        self._settle(group, replica)
        return self._pop(group)

    def _settle(self, group: Group, replica: int) -> None:
        group.homes.add(replica)
        self._at_home.setdefault(replica, {})[group.name] = group

    def _own(self, replica: int) -> Group | None:
        groups = self._at_home.get(replica, {})
        return next(iter(groups.values()), None)

    def _free(self, replica: int, most_shared: float) -> Group | None:
        """The group with the longest row that this replica may take from."""
        passed: list[tuple[float, int, Hashable]] = []
        found: Group | None = None
        while self._heap and found is None:
            entry = heapq.heappop(self._heap)
            group = self._groups.get(entry[2])
            if group is None or not group.tasks or group.longest != -entry[0]:
                continue  # stale: the group has a newer entry
            passed.append(entry)
            if not group.homes or group.cost > most_shared:
                found = group
        for entry in passed:
            heapq.heappush(self._heap, entry)
        return found

    def _pop(self, group: Group) -> Task:
        _, ticket, task = heapq.heappop(group.tasks)
        group.cost -= task.cost
        self.num_tasks, self.num_bytes = self.num_tasks - 1, self.num_bytes - task.size
        self.cost = max(0.0, self.cost - task.cost) if self.num_tasks else 0.0
        if group.tasks:
            heapq.heappush(self._heap, (-group.longest, ticket, group.name))
        else:
            del self._groups[group.name]
            for replica in group.homes:
                self._at_home[replica].pop(group.name, None)
            if group.name == task.beginning:
                self._last_homes[group.name] = group.homes
                while len(self._last_homes) > REMEMBERED:
                    del self._last_homes[next(iter(self._last_homes))]
        return task

    def forget(self, replica: int) -> None:
        """The replica is gone, with its cache."""
        for group in self._at_home.pop(replica, {}).values():
            group.homes.discard(replica)
        for homes in self._last_homes.values():
            homes.discard(replica)

    def tasks(self) -> Iterator[Task]:
        for group in self._groups.values():
            for _, _, task in group.tasks:
                yield task
