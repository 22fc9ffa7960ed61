"""One replica: an engine's process, and those that replace it when it dies.

Whatever ends an engine (a crash, the kernel's out-of-memory killer, a hang) costs one restart. Rows
that it had not begun are dealt again. Rows that it ran are tried in halves, on this replica, until
the row that ends the engine is found.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from quire.errors import InvalidOption, ModelError, NotEnoughMemory, QuireError
from quire.replicas.engine_process import described
from quire.replicas.feeder import Feeder
from quire.replicas.memory_kills import MemoryKills, smaller
from quire.replicas.suspects import Death, Suspects
from quire.replicas.task import Task
from quire.replicas.wire import Message

MOST_FAILURES = 16  # in succession, without a single result
MOST_LOAD_FAILURES = 3
MOST_CULPRITS = 3  # in succession: then the rows are not the cause


class BoardView(Protocol):
    def rows(self) -> Sequence[int]: ...


class EngineLink(Protocol):
    """An engine somewhere: messages to it, messages from it, and how it ended."""

    ended: bool
    place_lost: bool  # it did not end by itself: the machine that it ran on is lost
    killed: bool  # by us, as `end` found, or True if that is not known

    @property
    def board(self) -> BoardView: ...

    @property
    def stderr_tail(self) -> str: ...

    def send(self, message: Message) -> None: ...

    def poll(self, timeout: float) -> list[Message]: ...

    def fileno(self) -> int:
        """A descriptor that is readable when `poll` has something to do."""
        ...

    def is_hung(self) -> bool: ...

    def end(self) -> int: ...


class Receiver(Protocol):
    """Takes results and news."""

    def answered(self, task: Task, message: Message) -> None: ...

    def failed(self, task: Task, kind: str, text: str) -> None: ...

    def ready(self, facts: Message) -> None: ...

    def metrics(self, message: Message) -> None: ...

    def note(self, line: str) -> None: ...


class Hopeless(Exception):
    """This replica cannot go on; `error` is the reason, in words for the user."""

    def __init__(self, error: QuireError | None, how: str, stderr_tail: str) -> None:
        super().__init__(how)
        self.error, self.how, self.stderr_tail = error, how, stderr_tail


class Replica:
    """A replica's engine, the suspects it tries, and how often it died."""

    def __init__(
        self,
        number: int,
        name: str,
        opening: Message,
        start: Callable[[Message], EngineLink],
        feeder: Feeder,
        receiver: Receiver,
    ) -> None:
        """`name` begins the notes about it; "" if there is only one replica."""
        self.number, self.name, self._start, self._feeder = number, name, start, feeder
        self._opening, self._receiver = opening, receiver
        self.engine: EngineLink | None = None
        self.facts: Message = {}  # about the running engine; empty until it is ready
        self._memory, self._said_memory = MemoryKills(), False
        self._num_out_of_memory = 0  # engines that ran out of memory
        self._fuller: Message | None = None  # the opening to return to, with more memory
        self._suspects = Suspects()
        self._culprits: list[tuple[Task, str, str]] = []
        self.run_open = self.trial = self._end_sent = self.was_ready = False
        self.place_lost = False  # True until it is ready in another place
        self._failures = self._load_failures = 0
        self.num_restarts = 0

    @property
    def able(self) -> bool:
        """Whether it can take new rows."""
        idle = bool(self.facts) and not self.trial and not self._end_sent
        return idle and not len(self._suspects)

    @property
    def has_suspects(self) -> bool:
        return bool(len(self._suspects))

    def begin(self, engine: EngineLink | None = None) -> None:
        """Start its engine, or take one that was started with the same opening."""
        self._memory, self._said_memory = MemoryKills(), False
        self.engine = self._start(self._opening) if engine is None else engine

    def restart_with(self, options: Message) -> None:
        """Replace an engine that has just loaded by one with these options."""
        if self.engine is not None:
            self.engine.end()
        self._opening = {**self._opening, "options": {**self._opening["options"], **options}}
        self.begin()

    # Rows out.

    def feed_trial(self) -> None:
        """If rows are suspected, try the next group of them in a run of its own."""
        if not self.facts or self.run_open or self.engine is None:
            return
        group = self._suspects.take()
        if group is not None:
            self._feeder.hold(self.number, group)
            self.send(group)
            self.trial = True
            self.end_run()

    def take_suspects_of(self, other: Replica) -> None:
        """Try the suspects of a replica that may never find another place to run."""
        self._suspects.join(other._suspects)
        self.end_run()

    def send(self, tasks: Sequence[Task]) -> None:
        if self.engine is not None:
            rows = [{"row": task.number, **task.asked} for task in tasks]
            self.engine.send({"kind": "rows", "rows": rows})
            self.run_open, self._end_sent = True, False

    def end_run(self) -> None:
        """End the run: no more rows come, and the engine answers when it has finished."""
        if self.engine is not None and self.run_open and not self._end_sent:
            self.engine.send({"kind": "end"})
            self._end_sent = True

    def recall(self, rows: Collection[int], *, running: bool) -> None:
        """Recall rows; rows that it runs only if `running`."""
        if self.engine is not None and self.run_open:
            self.engine.send({"kind": "recall", "rows": list(rows), "running": running})

    # Messages in.

    def take(self, message: Message) -> list[tuple[int, int]]:
        """Handle a message; returns (replica, row) of rows that other replicas may cancel."""
        kind = message["kind"]
        if kind == "result":
            return self._result(message)
        if kind == "returned":
            self._feeder.take_back(self.number, message["rows"])
        elif kind == "metrics":
            self._receiver.metrics({**message, "replica": self.number} if self.name else message)
        elif kind == "drained":
            self.run_open = self.trial = self._end_sent = False
            self._feeder.end_run(self.number)
        elif kind == "ready":
            self._receiver.ready(message)
            self.facts, self.was_ready, self._load_failures = message, True, 0
            self.place_lost = False
            options = {**message.get("arithmetic", {}), **self._opening["options"]}
            self._opening = {**self._opening, "options": options}
            self._feeder.open(self.number, int(message["capacity"]))
        elif kind == "failed":
            self._engine_failed(message)
        return []

    def _result(self, message: Message) -> list[tuple[int, int]]:
        task, others = self._feeder.take_answered(self.number, message["row"])
        if task is None:
            return []
        if "error_type" in message:
            self._receiver.failed(task, message["error_type"], message["error"])
        else:
            self._failures = 0
            self.confirm_culprits()
            self._receiver.answered(task, message)
        return [(other, task.number) for other in others]

    def _engine_failed(self, message: Message) -> None:
        """The engine sent why it cannot go on. If no restart can help, this replica ends."""
        family, text = message["error_type"], message["error"]
        if not self.facts and family != "death":
            kinds = {"usage": InvalidOption, "memory": NotEnoughMemory}
            raise Hopeless(kinds.get(family, ModelError)(text), "failed to load", text)
        self._receiver.note(f"quire: {self.name}the engine stopped: {text}")
        self._said_memory = family == "memory"

    # When the engine dies.

    def recover(self) -> None:
        """Put back the rows of an engine that ended; after that a new engine may be started."""
        engine = self.engine
        if engine is None:
            return
        hung, held = not engine.ended, set(engine.board.rows())
        code = engine.end()
        out_of_memory = self._said_memory or self._memory.is_why(code)
        how = "hung" if hung else "ran out of memory" if out_of_memory else described(code)
        kind = "engine_hang" if hung else "out_of_memory" if out_of_memory else "engine_crash"
        self.engine = None
        lived = self._feeder.seconds(self.number)
        running = self._feeder.lose(self.number, held)
        self._receiver.note(
            f"quire: {self.name}the engine {how} with {len(running)} rows running; "
            "starting it again"
        )
        culprit = None
        if lived is not None:  # an engine that was never ready had no rows
            is_foreign = not engine.killed and self._memory.is_foreign(code)
            death = Death(*lived, len(held) > len(running), engine.place_lost or is_foreign)
            culprit = self._suspects.accuse(running, death)
        if out_of_memory and self.facts:
            self._spare_memory(alone=len(running) == 1, is_culprit=culprit is not None)
        # A machine that was lost says nothing about loading.
        self._load_failures += not self.facts and not engine.place_lost
        self.facts, self.place_lost = {}, engine.place_lost
        self.run_open = self.trial = self._end_sent = False
        self._failures += 1
        self.num_restarts += 1
        if culprit is not None:
            # Held back until another row succeeds here: with an engine that cannot do anything,
            # every row would look like the culprit.
            self._failures = 0
            times = self._suspects.times_alone(culprit)
            text = f"the engine {how} with this row alone running, {times} times"
            self._culprits.append((culprit, kind, text))
        too_many = (
            self._failures >= MOST_FAILURES
            or self._load_failures >= MOST_LOAD_FAILURES
            or len(self._culprits) >= MOST_CULPRITS
        )
        if too_many:
            raise Hopeless(None, how, engine.stderr_tail)

    def confirm_culprits(self) -> None:
        for task, kind, text in self._culprits:
            self._receiver.failed(task, kind, text)
        self._culprits.clear()

    def forget_suspects(self) -> None:
        self._suspects.clear()
        self._culprits.clear()

    def give_up(self) -> None:
        """End the replica for good; all its rows are put back."""
        if self.engine is not None:
            self.engine.end()
            self.engine = None
        self.facts, self.run_open = {}, False
        left = [*self._feeder.lose(self.number, ()), *self._suspects.clear()]
        for task in [*left, *(task for task, _, _ in self._culprits)]:
            self._feeder.add(task, back=True)
        self._culprits.clear()
        self._feeder.remove_replica()

    def _spare_memory(self, *, alone: bool, is_culprit: bool) -> None:
        """Give the next engine half the memory if memory ran out twice, or with a single row
        running. If that row still fails with less and less, the row is the cause: then the engine
        gets back what it had when the search began."""
        if is_culprit:
            self._opening = self._fuller or self._opening
            self._fuller, self._num_out_of_memory = None, 0
            return
        if not self.trial:
            self._fuller = None
        self._num_out_of_memory += 1
        if self._num_out_of_memory > 1 or alone:
            self._fuller = self._fuller or self._opening
            options = smaller(self._opening["options"], self.facts)
            self._opening = {**self._opening, "options": options}
            self._receiver.note(
                f"quire: {self.name}memory is short: going on with {options['max_num_seqs']} rows "
                f"at once and {options['num_gpu_blocks_override']} KV blocks"
            )
