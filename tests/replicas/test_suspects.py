"""Which row brings the engine down, and which only had bad luck."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Mapping

import pytest

from quire.replicas.suspects import MOST_STRIKES, Death, Suspects
from quire.replicas.task import Task

QUICK = Death(life=0.5, run=0.1)
CAPACITY = 8


def rows(count: int) -> list[Task]:
    return [Task(i, 1.0) for i in range(count)]


def times_until_blamed(suspects: Suspects, row: Task, fall: Death) -> int:
    for times in range(1, 100):
        if suspects.accuse([row], fall) is row:
            return times
        assert suspects.take() == [row]
    raise AssertionError("never")


@pytest.mark.parametrize("culprit", [0, 1, 31, 32, 63])
def test_halving_finds_one_of_sixty_four_in_eight_failures(culprit: int) -> None:
    suspects, failures = Suspects(), 1
    found = suspects.accuse(rows(64), QUICK)
    while found is None:
        group = suspects.take()
        assert group is not None
        if culprit in {row.number for row in group}:
            failures += 1
            found = suspects.accuse(group, QUICK)
    assert found.number == culprit and failures <= 8
    assert suspects.times_alone(found) == 2
    rest = []
    while group := suspects.take():
        rest += [row.number for row in group]
    assert culprit not in rest


def test_a_row_is_no_culprit_for_falling_beside_others() -> None:
    suspects, row = Suspects(), Task(7, 1.0)
    for _ in range(3):
        beside = Death(0.5, 0.1, others=True)
        assert suspects.accuse([row], beside) is None and suspects.take() == [row]
    assert times_until_blamed(suspects, row, QUICK) == 2


@pytest.mark.parametrize(
    ("lives", "run", "times"),
    [
        ([], 3600.0, 2),  # nothing else is known to end engines
        ([3600.0], 0.1, 2),  # once an hour is no reason for two in a moment
        ([1.0, 1.0], 0.1, 3),
        ([0.5] * 9, 0.1, 5),
        ([3600.0, 0.5], 0.1, 5),  # somebody has begun to kill
        ([0.1] * 9, 1.0, MOST_STRIKES),
        ([0.0], 0.1, MOST_STRIKES),
    ],
)
def test_the_oftener_engines_fall_without_a_row_the_less_their_falls_say_of_it(
    lives: list[float], run: float, times: int
) -> None:
    suspects = Suspects()
    for number, life in enumerate(lives):
        suspects.accuse([Task(100 + number, 1.0), Task(200 + number, 1.0)], Death(life, life))
        suspects.clear()
    assert times_until_blamed(suspects, Task(7, 1.0), Death(9.0, run)) == times


def test_falls_of_a_culprit_are_no_excuse_for_the_next() -> None:
    suspects = Suspects()
    for number in range(9):
        assert times_until_blamed(suspects, Task(number, 1.0), QUICK) == 2


def test_an_engine_without_rows_that_falls_speaks_for_all_rows() -> None:
    suspects = Suspects()
    for _ in range(3):
        assert suspects.accuse([], QUICK) is None and suspects.take() is None
    assert times_until_blamed(suspects, Task(7, 1.0), QUICK) > 2


def test_a_kill_from_outside_speaks_for_the_row_until_it_cannot_be_answered_here() -> None:
    """A row may fill the memory until some program on the machine kills the engine for it."""
    outside, row = Death(600.0, 0.1, outside=True), Task(7, 1.0)
    assert times_until_blamed(Suspects(), row, outside) == MOST_STRIKES
    suspects = Suspects()
    assert suspects.accuse([row], outside) is None and suspects.take() == [row]
    assert times_until_blamed(suspects, row, QUICK) == 2


def batch(
    rng: random.Random, suspects: Suspects, poison: Mapping[int, float], kills: float
) -> tuple[set[int], int]:
    """The rows that are blamed of 200 that take 0.15 s, and how often the engine died. `poison`:
    row -> seconds until it brings the engine down; `kills`: by others, in a second."""
    waiting, now, num_deaths = deque(rows(200)), 0.0, 0
    blamed: set[int] = set()
    ready, killed = now, now + rng.expovariate(kills) if kills else math.inf
    while waiting or len(suspects):
        group = suspects.take()
        source = deque(group) if group else waiting
        run, running = now, dict[Task, float]()
        while source or running:
            while source and len(running) < CAPACITY:
                running[source.popleft()] = now
            end, row = min(
                ((began + 0.15, row) for row, began in running.items()), key=lambda e: e[0]
            )
            fall = min([began + poison.get(row.number, 9.0) for row, began in running.items()])
            if end < min(fall, killed):
                now = end
                del running[row]
                continue
            now, num_deaths = min(fall, killed), num_deaths + 1
            culprit = suspects.accuse([*running], Death(now - ready, now - run))
            blamed |= set() if culprit is None else {culprit.number}
            ready, killed = now, now + rng.expovariate(kills) if kills else math.inf
            break
    return blamed, num_deaths


@pytest.mark.parametrize("seconds", [0.02, 0.14])
def test_a_poisoned_row_is_found_whoever_else_kills_engines(seconds: float) -> None:
    for seed in range(20):
        rng = random.Random(seed)
        poison = dict.fromkeys(rng.sample(range(200), 2), seconds)
        blamed, num_deaths = batch(rng, Suspects(), poison, kills=0.0)
        assert blamed == poison.keys() and num_deaths <= 2 * 5
        blamed, _ = batch(rng, Suspects(), poison, kills=0.5)
        assert blamed == poison.keys()
        assert batch(rng, Suspects(), poison, kills=3.0)[0] >= poison.keys()


def test_kills_of_the_engine_blame_few_rows() -> None:
    """Three in a second, where a row takes 0.15: two falls alone would blame 2.3 rows of 200."""
    found = [batch(random.Random(seed), Suspects(), {}, kills=3.0) for seed in range(40)]
    assert sum(num_deaths for _, num_deaths in found) > 40 * 20
    assert sum(len(blamed) for blamed, _ in found) <= 40 * 0.5
    assert not any(batch(random.Random(s), Suspects(), {}, kills=0.5)[0] for s in range(40))
