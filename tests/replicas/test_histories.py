"""Random histories of the real replicas over engines that fall for every reason there is: each row
gets one outcome, the right one, and at every moment somebody has it."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from quire.replicas import replica_set
from quire.replicas.replica_set import ReplicaSet
from quire.replicas.suspects import MOST_STRIKES
from quire.replicas.task import Task
from quire.replicas.wire import Message

NUM_TURNS = 5000  # more than any of these jobs needs
OUTCOMES = {
    "crash": "engine_crash",
    "early": "engine_crash",
    "hang": "engine_hang",
    "memory": "out_of_memory",
}


@dataclass
class World:
    """What engines meet: rows that kill, hang or fill memory, and falls that are no row's fault."""

    rng: random.Random
    capacity: int
    kinds: dict[int, str]  # row -> how it is bad, if it is
    most_running: int  # rows that memory holds
    falls: float  # how likely an engine is killed from outside, in a step
    lost_places: bool  # whether the machine is gone then, and no other one found
    forgettable: set[int]  # rows that an engine leaves without an answer once, as a run ends
    lives: int  # of replica 1, before it cannot be loaded any more
    exhausted: bool = False
    now: float = 0.0
    # How often each was killed from outside, alone.
    unlucky: Counter[int] = field(default_factory=Counter)
    engines: list[SimEngine] = field(default_factory=list)
    outcomes: list[tuple[int, str]] = field(default_factory=list)
    openings: list[Message] = field(default_factory=list)

    def start(self, number: int, opening: Message) -> SimEngine:
        self.openings.append(opening)
        made = SimEngine(self, number, opening)
        self.engines.append(made)
        return made

    # What the replicas say.

    def answered(self, task: Task, message: Message) -> None:
        self.outcomes.append((task.number, "answer"))

    def failed(self, task: Task, kind: str, text: str) -> None:
        assert kind == "refused" or "with this row alone running, " in text
        self.outcomes.append((task.number, kind))

    def ready(self, facts: Message) -> None:
        pass

    def metrics(self, message: Message) -> None:
        pass

    def note(self, line: str) -> None:
        pass


class SimEngine:
    """One life of an engine, by the protocol that quire.replicas.child keeps. Of the first replica
    there is always a next one."""

    stderr_tail = "its last words"

    def __init__(self, world: World, number: int, opening: Message) -> None:
        self._world, self.board, self.number = world, self, number
        options = opening["options"]
        self._capacity = int(options.get("max_num_seqs", world.capacity))
        self._blocks = int(options.get("num_gpu_blocks_override", 4096))
        self.ended = self.place_lost = self.hung = self.killed = self.is_closed = False
        self._loading = world.rng.randint(0, 3)
        num_before = sum(engine.number == number for engine in world.engines)
        if number and num_before and world.lost_places:
            self._loading = NUM_TURNS
        self._is_broken = number == 1 and num_before >= world.lives
        self.waiting, self.running = list[int](), list[int]()
        self.forgotten: set[int] = set()
        self.said: list[Message] = []
        self.unread: list[Message] = []  # questions for rows
        self._run_ends, self._code = False, 0

    def rows(self) -> list[int]:
        return list(self.running)

    def has(self) -> set[int]:
        """Rows that it has, or has said something of that was not heard yet."""
        heard = {row for m in self.said for row in m.get("rows", [m.get("row")])}
        return {*self.waiting, *self.running, *self.forgotten, *heard}

    def send(self, message: Message) -> None:
        assert not self.is_closed
        if message["kind"] == "rows":
            assert self._loading < 0, "rows before it is ready"
            self.waiting += [row["row"] for row in message["rows"]]
            assert len(self.has()) <= 64, "far more than it runs"
        elif message["kind"] == "end":
            self._run_ends = True
        else:
            self.unread.append(message)

    def _give_back(self, asked: Message) -> None:
        """Nothing of a run whose end was said before."""
        wanted = set(asked["rows"]) if not self._run_ends else set()
        given = [row for row in self.waiting if row in wanted]
        given += [row for row in self.running if row in wanted and asked["running"]]
        self.waiting = [row for row in self.waiting if row not in given]
        self.running = [row for row in self.running if row not in given]
        self.said.append({"kind": "returned", "rows": given})

    def poll(self, timeout: float) -> list[Message]:
        if not self.ended and not self.hung:
            self._step()
        said, self.said = self.said, []
        return said

    def _step(self) -> None:
        rng, world = self._world.rng, self._world
        self._loading -= 1
        if self._is_broken and self._loading < 1:
            return self._fall(1)
        if self._loading == -1:
            facts = {"capacity": self._capacity, "num_blocks": self._blocks}
            self.said.append({"kind": "ready", **facts})
        if self._loading >= 0:
            return
        if self.unread and rng.random() < 0.5:
            self._give_back(self.unread.pop(0))
        if self._run_ends and any(world.kinds.get(row) == "early" for row in self.waiting):
            return self._fall(-11)  # before it shows what it runs
        while self.waiting and len(self.running) < self._capacity:
            self.running.append(self.waiting.pop(0))
        kinds = {world.kinds[row] for row in self.running if row in world.kinds}
        if "memory" in kinds or len(self.running) > world.most_running:
            self.said.append({"kind": "failed", "error_type": "memory", "error": "no more"})
            self._fall(1)
        elif kinds & {"crash", "early"}:
            self._fall(-11)
        elif "hang" in kinds:
            self.hung = True
        elif self.running and rng.random() < world.falls and self._may_fall():
            self.place_lost = world.lost_places and self.number > 0
            self._fall(-9)
        else:
            self._answer()

    def _may_fall(self) -> bool:
        """A row alone is not killed from outside too often: it would rightly be given up."""
        if len(self.running) > 1:
            return True
        self._world.unlucky.update(self.running)
        return self._world.unlucky[self.running[0]] < MOST_STRIKES

    def _answer(self) -> None:
        rng = self._world.rng
        for row in rng.sample(self.running, rng.randint(0, min(2, len(self.running)))):
            self.running.remove(row)
            if self._run_ends and row in self._world.forgettable:
                self._world.forgettable.remove(row)
                self.forgotten.add(row)
                continue
            message: Message = {"kind": "result", "row": row}
            if self._world.kinds.get(row) == "refused":
                message |= {"error_type": "refused", "error": "no such prompt"}
            self.said.append(message)
        if self._run_ends and not self.waiting and not self.running:
            self._run_ends = False
            self.forgotten.clear()
            self.said.append({"kind": "drained"})

    def _fall(self, code: int) -> None:
        self.ended, self._code = True, code

    def is_hung(self) -> bool:
        return self.hung

    def fileno(self) -> int:
        raise AssertionError("nobody waits here")

    def end(self) -> int:
        self.is_closed, self.killed = True, self.hung
        return self._code


def check_who_has_what(made: ReplicaSet, world: World, added: list[Task]) -> None:
    """Every row without an outcome is in one place; what is added up is what there is."""
    feeder = made.feeder
    assert feeder._num_replicas == made.num_replicas
    places: Counter[int] = Counter(task.number for task in feeder._pool.tasks())
    for name, total in (("cost", feeder._pool.cost), ("size", feeder._pool.num_bytes)):
        assert total == pytest.approx(sum(getattr(t, name) for t in feeder._pool.tasks()))
    for number, load in feeder._loads.items():
        tasks = [out.task for out in load.out.values()]
        assert load.cost == pytest.approx(sum(task.cost for task in tasks))
        assert load.num_bytes == sum(task.size for task in tasks)
        assert load.waiting.keys() <= load.out.keys()
        running = [out for n, out in load.out.items() if n not in load.waiting]
        assert len(running) <= load.capacity and all(out.began is not None for out in running)
        assert not load.waiting or len(running) == load.capacity
        [engine] = [r.engine for r in made._replicas if r.number == number]
        assert isinstance(engine, SimEngine) and load.out.keys() <= engine.has()
        # A second replica gets a row near the end alone.
        places.update(n for n in load.out if n not in feeder._copied)
    places.update({n for load in feeder._loads.values() for n in load.out if n in feeder._copied})
    decided = {row for row, _ in world.outcomes}
    for replica in made._replicas:
        # What is to be tried there waits for the end of a run, and no longer.
        assert not (replica.has_suspects and replica.run_open) or replica._end_sent
        if isinstance(engine := replica.engine, SimEngine) and not replica._end_sent:
            asked_back = {row for message in engine.unread for row in message["rows"]}
            assert {*engine.waiting, *engine.running} & decided <= asked_back
        places.update(task.number for group in replica._suspects._groups for task in group)
        places.update(task.number for task, _, _ in replica._culprits)
    places.update(row for row, _ in world.outcomes)
    assert places == Counter(task.number for task in added)
    assert world.exhausted or not feeder._copied
    assert not feeder._copied & decided
    # Rows that are tried stay where they are, and are nowhere else.
    assert not any(feeder._loads[number].trial for number in feeder._recalling)
    held = Counter(n for load in feeder._loads.values() for n in load.out)
    assert all(held[n] == 1 for load in feeder._loads.values() if load.trial for n in load.out)


def history(rng: random.Random) -> tuple[World, list[Task], int]:
    num_rows, num_replicas = rng.randint(1, 60), rng.choice([1, 2, 3])
    tasks = [
        Task(
            number,
            float(rng.randint(1, 40)),
            asked={},
            size=rng.randint(0, 99),
            beginning=rng.choice([None, "a", "b"]),
        )
        for number in range(num_rows)
    ]
    capacity = rng.choice([1, 4, 7])
    bad = rng.sample(range(num_rows), min(num_rows - 1, rng.choice([0, 1, 2])))
    if capacity == num_replicas == 1:  # as many as there are, with good ones in between
        bad = [*range(1, num_rows, 3)]
    kinds = {row: rng.choice([*OUTCOMES]) for row in bad}
    kinds |= {row: "refused" for row in range(0, num_rows, 17) if row not in bad}
    world = World(
        rng,
        capacity,
        kinds,
        most_running=rng.choice([1, 2, 99]),
        falls=rng.choice([0.0, 0.05, 0.2]),
        lost_places=rng.random() < 0.3,
        forgettable=set(rng.sample(range(num_rows), rng.choice([0, 0, num_rows // 4]))),
        lives=rng.choice([1, 2, 3, 5, 99]),
    )
    return world, tasks, num_replicas


@pytest.mark.parametrize("block", range(4))
def test_each_row_gets_its_outcome_once(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_set, "END_LOOK", -1.0)
    seen: Counter[str] = Counter()
    for seed in range(block * 50, block * 50 + 50):
        world, tasks, num_replicas = history(random.Random(seed))
        made = ReplicaSet([{"options": {}}] * num_replicas, world.start, world)
        made.feeder._clock = lambda: world.now  # noqa: B023
        added = list[Task]()
        for _ in range(NUM_TURNS):
            world.now += 0.2
            for task in tasks[len(added) : len(added) + world.rng.randint(0, 9)]:
                made.add(task)
                added.append(task)
            world.exhausted = made.feeder.exhausted = len(added) == len(tasks)
            made.turn(0.0)
            check_who_has_what(made, world, added)
            seen["copied"] += len(made.feeder._copied)
            if world.exhausted and made.idle:
                break
        made.confirm_culprits()
        made.close()
        assert all(engine.is_closed for engine in world.engines), seed
        expected = {
            task.number: OUTCOMES.get(kind := world.kinds.get(task.number, "answer"), kind)
            for task in tasks
        }
        assert sorted(world.outcomes) == sorted(expected.items()), seed
        if num_replicas == 1 and world.most_running >= world.capacity:
            assert made._replicas[0]._opening["options"] == {}, "less memory than the others need"
        seen.update(kind for _, kind in world.outcomes)
        seen["restarts"] += made.num_restarts
        seen["given up"] += num_replicas - made.num_replicas
    wanted = {"copied", "restarts", "given up", "refused", *OUTCOMES.values()}
    assert wanted <= {what for what, count in seen.items() if count}
