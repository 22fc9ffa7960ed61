"""The supervisor sends rows to the engines, writes the journal, and survives crashes of engines.

It is one loop in which nothing blocks. `quire.replicas` replaces engines that die and tries their
rows again; here rows are read from the source, and results are written to the journal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence

from quire.errors import JobStopped
from quire.jobs.input.work import WorkRow
from quire.jobs.store.journal import Journal
from quire.jobs.store.record import ResultRecord
from quire.jobs.supervise.metrics import ReplicaMetrics
from quire.jobs.supervise.progress import Watcher
from quire.jobs.supervise.row_costs import RowCosts
from quire.replicas.replica import EngineLink
from quire.replicas.replica_set import ReplicaSet, ReplicasLost
from quire.replicas.task import Task
from quire.replicas.wire import Message

COMMAND = (sys.executable, "-m", "quire.jobs.child")
TURN_ROWS, TURN_BYTES = 256, 1 << 20  # read at once, before the rest of the loop gets its turn
_LONGEST_WAIT = 0.2
_SHORT_WAIT = 0.02  # seconds, while the engine waits for rows that are being prepared
LONGEST_ERROR = 4000  # characters of a row's error that are kept


class Supervisor:
    """One run of a job, from the first row that is left to the last."""

    def __init__(
        self,
        journal: Journal,
        rows: Iterator[WorkRow | ResultRecord | None],
        openings: Sequence[Message],
        *,
        epoch: int,
        watcher: Watcher,
        on_ready: Callable[[Message], None] = lambda facts: None,
        should_stop: Callable[[], bool] = lambda: False,
        start: Callable[[int, Message], EngineLink],
        engines: Sequence[EngineLink] = (),
    ) -> None:
        """`rows` yields work, an earlier result that still counts, or None while the next row is
        not ready. `openings` has the first message for each replica; `engines` may be started
        already, with the same messages, to save time. Otherwise the first row that needs an
        engine starts them: a run with nothing left to compute loads no model."""
        self._journal, self._source, self._costs = journal, rows, RowCosts(openings[0])
        self._epoch, self._watcher, self._on_ready = epoch, watcher, on_ready
        self._should_stop, self._metrics = should_stop, ReplicaMetrics()
        self._starved = False  # the source had no row ready the last time
        self._replicas = ReplicaSet(openings, start, self, engines)

    @property
    def num_restarts(self) -> int:
        return self._replicas.num_restarts

    @property
    def has_begun(self) -> bool:
        """Whether a row needed the engines."""
        return self._replicas.begun

    def run(self) -> None:
        """Return when every row has a record on disk; JobStopped if it has to stop before."""
        try:
            while not (self._replicas.feeder.exhausted and self._replicas.idle):
                self._turn()
            self._replicas.confirm_culprits()
            self._journal.commit()
            if (last := self._metrics.last()) is not None:
                self._watcher.metrics(last)
        except ReplicasLost as lost:
            self._journal.commit()
            raise JobStopped(f"{lost}\nMend that, then run the same command") from None
        finally:
            self._replicas.close()

    def _turn(self) -> None:
        if self._should_stop():
            self._stop()
        fed = self._read_rows()
        due = self._journal.seconds_left
        longest = _SHORT_WAIT if self._starved else _LONGEST_WAIT
        wait = 0.0 if fed else longest if due is None else min(due, longest)
        self._replicas.turn(wait)
        self._journal.commit_if_due()
        self._watcher.tick()

    def _stop(self) -> None:
        """Keep what is finished, and leave."""
        self._replicas.turn(0.0)
        self._journal.commit()
        raise JobStopped("stopped cleanly")

    def _read_rows(self) -> bool:
        """Read rows for which there is room; True if more may be read at once."""
        feeder = self._replicas.feeder
        num_bytes = num_taken = 0
        self._starved = False
        while self._has_room(num_taken, num_bytes):
            try:
                row = next(self._source)
            except StopIteration:
                feeder.exhausted = True
                break
            if row is None:
                self._starved = True
                break
            num_taken += 1
            if isinstance(row, ResultRecord):
                self._journal.append(row)
                self._watcher.reused(row)
            elif row.error is None:
                self._replicas.add(self._costs.task(row))
                num_bytes += row.size
            else:
                self._keep(self._failed(row, row.error.kind, row.error.message))
        return num_taken > 0

    def _has_room(self, num_taken: int, num_bytes: int) -> bool:
        if num_taken >= TURN_ROWS or num_bytes > TURN_BYTES or self._replicas.feeder.exhausted:
            return False
        return self._replicas.num_wanted > 0

    # Callbacks of the replicas.

    def answered(self, task: Task, message: Message) -> None:
        row: WorkRow = task.row
        self._costs.observe(row, message)
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
                extra=_extra(message),
            )
        )

    def failed(self, task: Task, kind: str, text: str) -> None:
        self._keep(self._failed(task.row, kind, text))

    def ready(self, facts: Message) -> None:
        self._on_ready(facts)

    def metrics(self, message: Message) -> None:
        line = self._metrics.add(message) if "replica" in message else message
        if line is not None:
            self._watcher.metrics(line)

    def note(self, line: str) -> None:
        self._watcher.note(line)

    def _failed(self, row: WorkRow, kind: str, text: str) -> ResultRecord:
        if len(text) > LONGEST_ERROR:  # an error may quote the row, which can have any size
            text = f"{text[:LONGEST_ERROR]}… ({len(text)} characters)"
        return ResultRecord(row.row, row.key, row.content, self._epoch, error=text, error_type=kind)

    def _keep(self, record: ResultRecord) -> None:
        self._watcher.result(self._journal.append(record))


def _extra(message: Message) -> Message:
    """The fields that only some results have."""
    names = ("timings", "continuations", "choice_probs", "body", "transcript")
    return {name: message[name] for name in names if name in message}
