"""Which replica gets which row: the rules one by one, and what they are worth under a virtual
clock."""

from __future__ import annotations

from benchmarks.scale import Machine, Simulation, answers, job
from quire.replicas.feeder import Feeder
from quire.replicas.pool import Pool
from quire.replicas.task import Task

SMALL = Machine(capacity=16, fixed=0.02, row=0.0002)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def feeder(replicas: int = 2, capacity: int = 4, tasks: int = 0) -> tuple[Feeder, Clock]:
    clock = Clock()
    made = Feeder(replicas, clock=clock)
    for number in range(replicas):
        made.open(number, capacity)
    for number in range(tasks):
        made.add(Task(number, 1.0))
    made.exhausted = True
    return made, clock


def numbers(dealt: dict[int, list[Task]]) -> dict[int, list[int]]:
    return {replica: [task.number for task in tasks] for replica, tasks in dealt.items()}


def test_the_longest_row_goes_first_and_each_to_the_least_busy() -> None:
    made, _ = feeder()
    for number, cost in enumerate([1.0, 5.0, 2.0, 4.0]):
        made.add(Task(number, cost))
    assert numbers(made.deal()) == {0: [1, 0], 1: [3, 2]}


def test_one_replica_alone_gets_its_rows_in_order() -> None:
    made, _ = feeder(1)
    for number, cost in enumerate([1.0, 5.0, 2.0]):
        made.add(Task(number, cost, beginning="same"))
    assert numbers(made.deal()) == {0: [0, 1, 2]}
    made.take_back(0, [1, 2])
    assert numbers(made.deal()) == {0: [1, 2]}
    made.lose(0, [])
    made.open(0, 4)
    assert numbers(made.deal()) == {0: [0, 1, 2]}


def test_fewer_rows_than_replicas_are_spread() -> None:
    made, _ = feeder(4, tasks=3)
    assert sorted(map(len, made.deal().values())) == [1, 1, 1]


def test_rows_that_begin_alike_stay_together_until_they_are_too_many() -> None:
    made, _ = feeder(2, capacity=50)
    for number in range(10):
        made.add(Task(number, 1.0, beginning="a" if number % 2 else "b"))
    dealt = {replica: {n % 2 for n in rows} for replica, rows in numbers(made.deal()).items()}
    assert dealt == {0: {0}, 1: {1}}
    alone, _ = feeder(2, capacity=50)
    for number in range(10):
        alone.add(Task(number, 1.0, beginning="a"))
    assert {len(rows) for rows in alone.deal().values()} == {5}


def test_a_pool_remembers_who_has_a_beginning() -> None:
    pool = Pool()
    pool.put(Task(0, 1.0, beginning="a"))
    assert pool.take(1, most_shared=0.0)
    pool.put(Task(1, 1.0, beginning="a"))
    assert pool.take(0, most_shared=5.0) is None  # it is replica 1's
    assert pool.take(1, most_shared=5.0) == Task(1, 1.0, beginning="a")
    pool.put(Task(2, 1.0, beginning="a"))
    pool.forget(1)
    assert pool.take(0, most_shared=5.0) is not None


def test_a_dead_replica_s_rows_go_back_and_those_it_ran_are_suspects() -> None:
    made, _ = feeder(2, capacity=2, tasks=8)
    mine = numbers(made.deal())[1]
    assert [task.number for task in made.lose(1, mine[:2])] == mine[:2]
    made.open(1, 2)
    again = numbers(made.deal([1]))[1]
    assert set(again) == set(mine[2:])


def test_a_row_that_two_replicas_have_is_no_suspect_and_lands_once() -> None:
    made, clock = feeder(2, capacity=2, tasks=3)
    dealt = numbers(made.deal())
    [short] = [r for r, rows in dealt.items() if len(rows) == 1]
    long = 1 - short
    clock.now = 1.0
    made.take_answered(short, dealt[short][0])
    clock.now = 9.0  # the other one is far too late by now
    copied = numbers(made.copies())
    assert set(copied) == {short} and set(copied[short]) == set(dealt[long])
    assert made.copies() == {}
    first, second = copied[short]
    made.take_back(long, [second])
    assert made.num_waiting == 0  # the copy is still out
    task, others = made.take_answered(short, first)
    assert task is not None and others == [long]
    assert made.take_answered(long, first) == (None, [])  # the second result counts for nothing
    assert made.lose(long, dealt[long]) == []  # the other row is still with `short`
    assert len(made) == 1


def test_rows_that_have_not_begun_are_asked_back_once() -> None:
    made, clock = feeder(2, capacity=2, tasks=8)
    dealt = numbers(made.deal())
    clock.now = 1.0
    for row in dealt[0]:
        made.take_answered(0, row)
    [(victim, asked)] = made.recalls().items()
    assert victim == 1 and asked and set(asked) < set(dealt[1])
    assert made.recalls() == {}  # until it has answered
    made.take_back(1, asked)
    assert set(numbers(made.deal())[0]) <= set(asked)
    assert len(made) == 4


def test_no_row_is_lost_or_answered_twice_whatever_the_speeds() -> None:
    machines = [Machine(8, 0.02, 0.0002, slower) for slower in (1.0, 7.0, 0.5, 2.0)]
    tokens = answers(60_000, 40.0, 300.0)
    beginnings = [row // 5 for row in range(len(tokens))]
    made = Simulation(machines, tokens, lambda row: 40.0, beginnings=beginnings)
    made.run()
    assert sorted(made.answered_by) == list(range(len(tokens)))


def test_sixty_four_replicas_are_kept_busy_for_two_minutes(long_mode: bool) -> None:
    """The longest row takes half of that in a full batch."""
    replicas = 64 if long_mode else 16
    outcome = job(replicas, 120.0, machine=SMALL, longest=2048.0)
    assert outcome.share >= 0.95


def test_a_replica_four_times_slower_costs_little() -> None:
    known = job(4, 60.0, machine=SMALL, longest=512.0, slow=[4.0])
    assert known.seconds <= 1.15 * 60.0
    unknown = [
        job(4, 60.0, machine=SMALL, longest=512.0, slow=slow, noise=None).seconds
        for slow in ([], [4.0])
    ]
    assert unknown[1] <= 1.15 * unknown[0]
