"""Several replicas as one: rows go in, answers come out, even if engines die meanwhile.

It is one loop, in which only the wait for the next message of any engine blocks.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence

from quire.errors import EngineError, ModelError, QuireError
from quire.replicas.feeder import Feeder
from quire.replicas.replica import EngineLink, Hopeless, Receiver, Replica
from quire.replicas.task import Task
from quire.replicas.wire import Message

END_LOOK = 0.1  # seconds between two checks, near the end, for rows to move

# Starts an engine for the replica with this number.
Start = Callable[[int, Message], EngineLink]


class ReplicasLost(EngineError):
    """No replica is left that can go on."""


class ReplicaSet:
    """The replicas of one job or LLM, with one feeder."""

    def __init__(
        self,
        openings: Sequence[Message],
        start: Start,
        receiver: Receiver,
        engines: Sequence[EngineLink] = (),
    ) -> None:
        """`openings` has one per replica. `engines` may have been started already, with the same
        openings, to save time; otherwise `begin` or the first row starts them."""
        self.feeder = Feeder(len(openings))
        self._receiver = receiver
        self._replicas: list[Replica] = []
        self._by_number: dict[int, Replica] = {}
        many = len(openings) > 1
        self.begun = False  # engines were started
        for number, opening in enumerate(openings):
            name = f"replica {number}: " if many else ""
            replica = Replica(number, name, opening, _starter(start, number), self.feeder, receiver)
            self._replicas.append(replica)
            self._by_number[number] = replica
        self._looked_at_end = 0.0
        self._arithmetic: Message | None = None  # of the first engine; all others must use it
        self._aligned: set[Replica] = set()  # replicas that were started again for that
        if engines:
            self.begin(engines)

    def begin(self, engines: Sequence[EngineLink] = ()) -> None:
        """Start every engine, except those that are started already."""
        self.begun = True
        for replica in self._replicas:
            given = engines[replica.number] if replica.number < len(engines) else None
            replica.begin(given)

    @property
    def num_wanted(self) -> int:
        """How many more rows to add now."""
        return self.feeder.num_wanted if self.begun else 1

    @property
    def num_restarts(self) -> int:
        return sum(replica.num_restarts for replica in self._by_number.values())

    @property
    def idle(self) -> bool:
        """Whether every row that was added has its answer, and every engine's run has ended."""
        return not self._has_rows() and not any(replica.run_open for replica in self._replicas)

    @property
    def num_replicas(self) -> int:
        return len(self._replicas)

    @property
    def all_ready(self) -> bool:
        """Whether every remaining replica has loaded its model."""
        return all(replica.facts for replica in self._replicas)

    def turn(self, wait: float) -> None:
        """Send rows, wait at most `wait` seconds for a message, and handle what came."""
        if self._send():
            wait = 0.0
        if (len(self._replicas) > 1 or not self.begun) and wait > 0:
            self._wait(wait)
            wait = 0.0
        for replica in list(self._replicas):
            try:
                self._look_at(replica, wait)
            except Hopeless as hopeless:
                self._give_up(replica, hopeless)

    def add(self, task: Task) -> None:
        if not self.begun:
            self.begin()
        self.feeder.add(task)

    # One turn.

    def _send(self) -> bool:
        """Send rows; returns whether rows were sent, so that there may be more."""
        for replica in self._replicas:
            if replica.engine is None and self._is_needed(replica):
                replica.begin()
            ready = [other for other in self._replicas if other.facts]
            # It may never be ready again; and if no other rows are left, others can try these.
            is_away = replica.place_lost or self.feeder.exhausted and not len(self.feeder)
            if is_away and not replica.facts and replica.has_suspects and ready:
                min(ready, key=lambda one: one.has_suspects).take_suspects_of(replica)
            replica.feed_trial()
        dealt = self.feeder.deal([r.number for r in self._replicas if r.able])
        for number, tasks in dealt.items():
            self._by_number[number].send(tasks)
        self._near_the_end()
        return bool(dealt)

    def _is_needed(self, replica: Replica) -> bool:
        """Whether an engine that died should be started again: only if it would have rows."""
        if not self.begun:
            return False
        if replica.has_suspects or not self.feeder.exhausted or self.feeder.num_waiting:
            return True
        return self._has_rows() and not any(r.facts for r in self._replicas)

    def _has_rows(self) -> bool:
        """Whether a row that was added has no answer yet."""
        return bool(len(self.feeder)) or any(r.has_suspects for r in self._replicas)

    def _near_the_end(self) -> None:
        if not self.feeder.exhausted:
            return
        if not len(self.feeder):
            if not self._has_rows():
                for replica in self._replicas:
                    replica.end_run()
            return
        now = time.monotonic()
        if now - self._looked_at_end < END_LOOK:
            return
        self._looked_at_end = now
        for number, rows in self.feeder.recalls().items():
            self._by_number[number].recall(rows, running=False)
        able = [r.number for r in self._replicas if r.able]
        for number, tasks in self.feeder.copies(able).items():
            self._by_number[number].send(tasks)

    def _wait(self, seconds: float) -> None:
        """Wait until an engine sends something, for at most `seconds`."""
        poll = select.poll()
        for replica in self._replicas:
            if replica.engine is not None:
                poll.register(replica.engine.fileno(), select.POLLIN)
        poll.poll(seconds * 1000)

    def _look_at(self, replica: Replica, wait: float) -> None:
        engine = replica.engine
        if engine is None:
            return
        for message in engine.poll(wait):
            if message["kind"] == "ready" and self._differs(replica, message):
                return
            for other, row in replica.take(message):
                self._by_number[other].recall([row], running=True)
        if engine.ended or engine.is_hung():
            replica.recover()

    def _differs(self, replica: Replica, facts: Message) -> bool:
        """Whether an engine computes with other numbers than the first one; it is then started
        again with the first one's arithmetic."""
        arithmetic = facts.get("arithmetic", {})
        if self._arithmetic is None:
            self._arithmetic = arithmetic
            return False
        if arithmetic == self._arithmetic:
            return False
        if replica in self._aligned:
            text = f"it computes with {arithmetic}, the others with {self._arithmetic}"
            raise Hopeless(ModelError(text), text, "")
        self._aligned.add(replica)
        replica.restart_with(self._arithmetic)
        return True

    def _give_up(self, replica: Replica, hopeless: Hopeless) -> None:
        """Go on without this replica, if another one works."""
        others = [r for r in self._replicas if r is not replica]
        why: QuireError = hopeless.error or ReplicasLost(
            f"the engine {hopeless.how}, again and again without a result in between, so it is no "
            f"row's fault. It said last:\n{hopeless.stderr_tail}"
        )
        still_loading = hopeless.error is None and others
        if not still_loading and not any(other.was_ready for other in others):
            raise why
        replica.give_up()
        self._replicas.remove(replica)
        self._receiver.note(
            f"quire: {replica.name}given up ({why}); {len(self._replicas)} go on without it"
        )

    def abandon(self) -> None:
        """Cancel every row that has no answer, on the engines, too."""
        for replica in self._replicas:
            replica.forget_suspects()
        for number, rows in self.feeder.abandon().items():
            self._by_number[number].recall(rows, running=True)

    def confirm_culprits(self) -> None:
        """Report the culprits; called at the end, when no other row can succeed any more."""
        for replica in self._replicas:
            replica.confirm_culprits()

    def close(self) -> None:
        """End every engine. It may be called twice."""
        for replica in self._replicas:
            if replica.engine is not None:
                replica.engine.end()


def _starter(start: Start, number: int) -> Callable[[Message], EngineLink]:
    return lambda opening: start(number, opening)
