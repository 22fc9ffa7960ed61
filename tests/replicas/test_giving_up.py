"""When a replica is not started again: it cannot load, or falls too often without a result."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from quire.errors import ModelError, QuireError, RankDied
from quire.replicas.child.process import error_family
from quire.replicas.feeder import Feeder
from quire.replicas.replica import MOST_FAILURES, MOST_LOAD_FAILURES, Hopeless, Replica
from quire.replicas.task import Task
from quire.replicas.wire import Message


class FallenEngine:
    """One that has ended already, or its machine has."""

    ended, killed, stderr_tail = True, False, "the last words"

    def __init__(self, place_lost: bool) -> None:
        self.place_lost, self.board = place_lost, self

    def rows(self) -> list[int]:
        return []

    def end(self) -> int:
        return -9

    def is_hung(self) -> bool:
        return False

    def fileno(self) -> int:
        return -1

    def poll(self, timeout: float) -> list[Message]:
        return []

    def send(self, message: Message) -> None:
        pass


class Silent:
    """Hears all that is said."""

    def __getattr__(self, name: str) -> Any:
        return lambda *given: None


class Fall(NamedTuple):
    place_lost: bool = False
    ready: bool = False
    answers: bool = False
    said: QuireError | None = None


def falls_until_given_up(*falls: Fall) -> int:
    """How often a replica falls, by these turns, before it is given up."""
    feeder = Feeder(2)
    replica = Replica(0, "", {"options": {}}, lambda _: FallenEngine(False), feeder, Silent())
    for number in range(100):
        place_lost, ready, answers, said = falls[number % len(falls)]
        replica.begin(FallenEngine(place_lost))
        if ready:
            replica.take({"kind": "ready", "capacity": 4})
        if answers:
            feeder.add(Task(number, 1.0))
            feeder.deal([0])
            replica.take({"kind": "result", "row": number})
        try:
            if said is not None:
                why = {"error_type": error_family(said), "error": str(said)}
                replica.take({"kind": "failed", **why})
            replica.recover()
        except Hopeless:
            return number + 1
    return 100


@pytest.mark.parametrize(
    ("falls", "expected"),
    [
        ([Fall()], MOST_LOAD_FAILURES),
        ([Fall(said=RankDied("rank 1 was killed"))], MOST_LOAD_FAILURES),
        ([Fall(said=ModelError("no such file"))], 1),  # and no other start would find one
        ([Fall(ready=True)], MOST_FAILURES),
        ([Fall(ready=True), Fall()], MOST_FAILURES),  # it could be loaded each second time
        ([Fall(place_lost=True)], MOST_FAILURES),
        ([Fall(place_lost=True), Fall()], 2 * MOST_LOAD_FAILURES),
        ([Fall(place_lost=True)] * 9 + [Fall(ready=True, answers=True)], 100),
    ],
)
def test_a_machine_that_is_gone_is_no_failure_to_load(falls: list[Fall], expected: int) -> None:
    assert falls_until_given_up(*falls) == expected
