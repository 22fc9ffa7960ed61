"""The supervisor: feeds the engine rows, keeps the journal, and outlives every engine.

One loop, nothing blocking in it. Whatever ends the engine (a crash, the kernel's memory killer,
a hang) costs one restart: rows that were not on board are simply sent again, those that were are
tried in halves until the culprit is found. Rows in flight are bounded by count and bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from quire.errors import InvalidOption, JobStopped, ModelError, NotEnoughMemory
from quire.jobs.engine_process import COMMAND, EngineProcess, described
from quire.jobs.input.work import WorkRow
from quire.jobs.store.journal import Journal
from quire.jobs.store.record import ResultRecord
from quire.jobs.supervise.in_flight import InFlight
from quire.jobs.supervise.memory_kills import MemoryKills, smaller
from quire.jobs.supervise.suspects import Suspects
from quire.jobs.wire import Message

IN_FLIGHT_WINDOWS = 6  # times the rows an engine runs at once: one window planned, one waiting
IN_FLIGHT_BYTES = 64 << 20
TURN_ROWS, TURN_BYTES = 256, 1 << 20  # read between two looks at everything else
MOST_FALLS = 16  # in a row, without a single result
MOST_LOAD_FALLS = 3
MOST_CULPRITS = 3  # in a row: then it is not the rows
_LONGEST_WAIT = 0.2
_SHORT_WAIT = 0.02  # while rows are being made ready that the engine could have
LONGEST_ERROR = 4000  # characters of a row's error that are kept


class Watcher(Protocol):
    """Who is told how the job goes."""

    def note(self, line: str) -> None: ...

    def result(self, record: ResultRecord) -> None: ...

    def reused(self, record: ResultRecord) -> None: ...

    def metrics(self, message: Message) -> None: ...

    def tick(self) -> None: ...


class Supervisor:
    """One run of a job, from the first row that is left to the last."""

    def __init__(
        self,
        journal: Journal,
        rows: Iterator[WorkRow | ResultRecord | None],
        opening: Message,
        *,
        epoch: int,
        watcher: Watcher,
        on_ready: Callable[[Message], None] = lambda facts: None,
        should_stop: Callable[[], bool] = lambda: False,
        command: Sequence[str] = COMMAND,
        engine: EngineProcess | None = None,
    ) -> None:
        """`rows` gives work, a result of before that still counts, or None while the next one is
        not ready. `engine` may have been started already, with the same opening, to save time."""
        self._journal, self._source, self._opening = journal, rows, opening
        self._epoch, self._watcher, self._on_ready = epoch, watcher, on_ready
        self._should_stop, self._command = should_stop, command
        self._engine = engine
        self._facts: Message = {}  # of the engine that runs; empty until it is ready
        self._memory, self._said_memory = MemoryKills(), False
        self._num_out_of_memory = 0  # engines that ran out of memory
        self._fuller: Message | None = None  # the opening to go back to
        self._in_flight = InFlight()
        self._again: deque[WorkRow] = deque()
        self._suspects, self._culprits = Suspects(), list[ResultRecord]()
        self._run_open = self._trial = self._end_sent = self._exhausted = False
        self._starved = False  # the source had nothing ready when it was last asked
        self._failures = 0
        self.num_restarts = 0

    def run(self) -> None:
        """Return when every row has a record on disk; JobStopped where that cannot be now."""
        try:
            while not self._finished():
                self._turn()
            self._confirm_culprits()
            self._journal.commit()
        finally:
            if self._engine is not None:
                self._engine.end()

    def _finished(self) -> bool:
        return (
            self._exhausted
            and not self._again
            and not self._run_open
            and not self._in_flight
            and not len(self._suspects)
        )

    def _turn(self) -> None:
        if self._should_stop():
            self._stop()
        if self._engine is None:
            self._start()
        engine = self._engine
        if engine is None:
            return
        fed = self._feed(engine)
        due = self._journal.seconds_left
        longest = _SHORT_WAIT if self._starved else _LONGEST_WAIT
        wait = 0.0 if fed else longest if due is None else min(due, longest)
        for message in engine.poll(wait):
            self._take(message)
        self._journal.commit_if_due()
        if engine.ended or engine.is_hung():
            self._recover(engine)
        self._watcher.tick()

    def _start(self) -> None:
        self._memory.begin()
        self._said_memory = False
        self._engine = EngineProcess(self._opening, command=self._command, hear=self._watcher.note)

    def _stop(self) -> None:
        """Keep what is finished, and leave."""
        if self._engine is not None:
            for message in self._engine.poll(0):
                self._take(message)
        self._journal.commit()
        raise JobStopped("stopped cleanly")

    def _feed(self, engine: EngineProcess) -> bool:
        """Send what there is room for; whether there may be more to send at once."""
        if not self._facts:
            return False
        if not self._run_open:
            group = self._suspects.take()
            if group is not None:
                self._send(engine, group)
                self._trial = True
                self._end(engine)
                return False
            self._trial = self._end_sent = False
        if self._trial or self._end_sent:
            return False
        return self._feed_bulk(engine)

    def _feed_bulk(self, engine: EngineProcess) -> bool:
        rows: list[WorkRow] = []
        num_bytes = 0
        room = max(64, IN_FLIGHT_WINDOWS * int(self._facts["capacity"])) - len(self._in_flight)
        num_taken, self._starved = 0, False
        for _ in range(min(TURN_ROWS, room)):
            if num_bytes > TURN_BYTES or self._in_flight.num_bytes > IN_FLIGHT_BYTES:
                break
            row = self._next_row()
            if row is None:
                self._starved = not self._exhausted
                break
            num_taken += 1
            if isinstance(row, ResultRecord):
                self._journal.append(row)
                self._watcher.reused(row)
            elif row.error is None:
                rows.append(row)
                num_bytes += row.size
            else:
                self._keep(self._failed(row, row.error.kind, row.error.message))
        if rows:
            self._send(engine, rows)
        if self._exhausted and not self._again and self._run_open:
            self._end(engine)
        return num_taken > 0

    def _next_row(self) -> WorkRow | ResultRecord | None:
        """The next one; None if it is not ready, or if there are no more."""
        if self._again:
            return self._again.popleft()
        try:
            return next(self._source)
        except StopIteration:
            self._exhausted = True
            return None

    def _send(self, engine: EngineProcess, rows: Sequence[WorkRow]) -> None:
        engine.send({"kind": "rows", "rows": [{"row": r.row, **r.asked} for r in rows]})
        self._in_flight.send(rows)
        self._run_open, self._end_sent = True, False

    def _end(self, engine: EngineProcess) -> None:
        engine.send({"kind": "end"})
        self._end_sent = True

    def _take(self, message: Message) -> None:
        kind = message["kind"]
        if kind == "result":
            self._result(message)
        elif kind == "metrics":
            self._watcher.metrics(message)
        elif kind == "drained":
            self._run_open = self._trial = self._end_sent = False
            self._again.extend(self._in_flight.lose(())[1])
        elif kind == "ready":
            self._on_ready(message)
            self._facts = message
            options = {**message.get("arithmetic", {}), **self._opening["options"]}
            self._opening = {**self._opening, "options": options}
        elif kind == "failed":
            self._engine_failed(message)

    def _result(self, message: Message) -> None:
        row = self._in_flight.land(message["row"])
        if row is None:
            return
        if "error_type" in message:
            self._keep(self._failed(row, message["error_type"], message["error"]))
            return
        self._failures = 0
        self._confirm_culprits()
        extra = _extra(message)
        self._keep(
            ResultRecord(
                row.row,
                row.key,
                row.content,
                self._epoch,
                tuple(message["outputs"]),
                tuple(message["finish_reasons"]),
                message["prompt_tokens"],
                message["output_tokens"],
                extra=extra,
            )
        )

    def _failed(self, row: WorkRow, kind: str, text: str) -> ResultRecord:
        if len(text) > LONGEST_ERROR:  # it quotes the row, which may be of any size
            text = f"{text[:LONGEST_ERROR]}… ({len(text)} characters)"
        return ResultRecord(row.row, row.key, row.content, self._epoch, error=text, error_type=kind)

    def _keep(self, record: ResultRecord) -> None:
        self._watcher.result(self._journal.append(record))

    def _engine_failed(self, message: Message) -> None:
        """It said why it cannot go on. What no restart can mend ends the job."""
        family, text = message["error_type"], message["error"]
        if not self._facts:
            if family == "usage":
                raise InvalidOption(text)
            raise (NotEnoughMemory if family == "memory" else ModelError)(text)
        self._watcher.note(f"quire: the engine stopped: {text}")
        self._said_memory = family == "memory"

    def _recover(self, engine: EngineProcess) -> None:
        """Put the rows in flight where they belong, and let a new engine go on."""
        hung, held = not engine.ended, set(engine.board.rows())
        code = engine.end()
        out_of_memory = self._said_memory or self._memory.is_why(code)
        how = "hung" if hung else "ran out of memory" if out_of_memory else described(code)
        kind = "engine_hang" if hung else "out_of_memory" if out_of_memory else "engine_crash"
        self._engine = None
        running, queued = self._in_flight.lose(held)
        if self._trial and not running:
            running, queued = queued, []
        self._again.extendleft(reversed(queued))
        self._watcher.note(
            f"quire: the engine {how} with {len(running)} rows on board; starting it again"
        )
        culprit = self._suspects.accuse(running)
        if out_of_memory and self._facts:
            self._spare_memory(alone=len(running) == 1, is_culprit=culprit is not None)
        was_loading, self._facts = not self._facts, {}
        self._run_open = self._trial = self._end_sent = False
        self._failures += 1
        self.num_restarts += 1
        if culprit is not None:
            self._find_culprit(culprit, kind, how)
        limit = MOST_LOAD_FALLS if was_loading else MOST_FALLS
        if self._failures >= limit or len(self._culprits) >= MOST_CULPRITS:
            self._journal.commit()
            raise JobStopped(
                f"the engine {how}, again and again without a result in between, so it is no "
                f"row's fault. It said last:\n{engine.stderr_tail}\nMend that, then run the same "
                "command"
            )

    def _find_culprit(self, row: WorkRow, kind: str, how: str) -> None:
        """Hold the verdict back until another row succeeds: an engine that can do nothing at all
        would blame every row."""
        self._failures = 0
        text = f"the engine {how} twice with this row alone on board"
        self._culprits.append(self._failed(row, kind, text))

    def _confirm_culprits(self) -> None:
        for record in self._culprits:
            self._keep(record)
        self._culprits.clear()

    def _spare_memory(self, *, alone: bool, is_culprit: bool) -> None:
        """The next engine gets half from the second time on that memory ran out, and where a
        single row was too much. If less and less does not help that row, it is the row: the
        others get back what they had when the search for it began."""
        if is_culprit:
            self._opening = self._fuller or self._opening
            self._fuller, self._num_out_of_memory = None, 0
            return
        if not self._trial:
            self._fuller = None
        self._num_out_of_memory += 1
        if self._num_out_of_memory > 1 or alone:
            self._fuller = self._fuller or self._opening
            self._ask_for_less()

    def _ask_for_less(self) -> None:
        options = smaller(self._opening["options"], self._facts)
        self._opening = {**self._opening, "options": options}
        self._watcher.note(
            f"quire: memory is short: going on with {options['max_num_seqs']} rows at once "
            f"and {options['num_gpu_blocks_override']} KV blocks"
        )


def _extra(message: Message) -> Message:
    """What not every result has."""
    names = ("timings", "continuations", "choice_probs", "body")
    return {name: message[name] for name in names if name in message}
