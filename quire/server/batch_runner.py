"""One batch from its first state to its last: checked, answered row by row, written out.

The state on disk decides where a batch continues, so one that was interrupted anywhere is simply
run again. Files are read and written on threads. Results are written to the journal in groups, and
counted when they are in it.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from quire.base.boundary import fault_of_row
from quire.base.notes import note
from quire.errors import CorruptJob, JobChanged
from quire.jobs.input.work import WorkRow
from quire.jobs.store.keys import row_seed
from quire.jobs.store.record import ResultRecord
from quire.jobs.supervise.supervisor import LONGEST_ERROR
from quire.openai_api.errors import INVALID, SERVER, ApiError, bad
from quire.server import batches, files
from quire.server.batch_context import BatchContext, Live
from quire.server.batch_end import LOST, commit_end, write_out
from quire.server.batch_engine import EngineFacts, RowAsked
from quire.server.batch_input import check_lines
from quire.server.batch_job import BatchJob, begin, needed_files
from quire.server.batch_lines import answered, rejected, row_name
from quire.server.batch_states import Ending, Status
from quire.server.batches import StoredBatch
from quire.server.engine_died import EngineDied

Made = TypeVar("Made")
READ_ROWS, READ_BYTES = 256, 2 << 20  # read ahead of the engine
GROUP, GROUP_SECONDS = 64, 0.5  # results that wait for the journal, at most


class BatchRun:
    """One run of one batch; `end` asks for an early end. It is also a Supply of rows."""

    def __init__(self, batch: StoredBatch, context: BatchContext) -> None:
        self.batch, self.key_id, self._context = batch, batch.key_id, context
        self.live = Live(batch.completed, batch.failed)
        self._ending: Ending | None = batch.ending
        self.asked_to_end = asyncio.Event()
        self._directory = context.storage.batch(batch.storage)
        self._abandoned = False
        self._ready: deque[WorkRow] = deque()
        self._results: list[ResultRecord] = []
        self._oldest_result = 0.0
        self._num_out = 0  # rows that were taken and have no result yet
        self._exhausted = False
        self._epoch = 0
        self._news = asyncio.Event()
        if batch.status == "cancelling":
            self.end("cancelled")

    def end(self, ending: Ending) -> None:
        """Ask for an early end: a cancel wins over an expiry, and neither stops the writing out."""
        if self._ending is None or (ending == "cancelled" and self._ending != "completed"):
            self._ending = ending
            self.asked_to_end.set()
            self._news.set()

    def again(self, batch: StoredBatch) -> BatchRun:
        """A new run of the batch as it is stored now, with the same early end asked for."""
        made = BatchRun(batch, self._context)
        if self.asked_to_end.is_set() and self._ending is not None:
            made.end(self._ending)
        return made

    async def run(self) -> None:
        """Until the batch has ended. May be cancelled at any point, and run again."""
        try:
            if await self._is_lost():
                await self._give_up()
                return
            if self.batch.in_progress_at is None:
                await self._begin()
            if self.batch.in_progress_at is None:  # failed, or cancelled before it began
                await self._change("cancelled", of=("cancelling",))
                return
            job = BatchJob(self.batch, self._directory)
            try:
                if not await self._is_open(job):
                    await self._give_up()
                    return
                self._epoch = job.epoch
                self.live.completed, self.live.failed = job.counts()
                self.live.before = self.live.completed + self.live.failed
                if self._ending is None or self._ending == "completed":
                    await self._answer(job)
                await self._finish(job)
            finally:
                await asyncio.shield(self._context.on_thread(job.close))
        finally:
            self._abandoned = True

    async def _source(self) -> Path:
        """The bytes of the file that the batch was made of."""
        source = await self._context.database.read(
            lambda connection: files.storage_of(connection, self.batch.input_file_id)
        )
        return self._context.storage.file(source)

    async def _is_lost(self) -> bool:
        """Whether files that the batch needs were removed. If the folder of all batches is missing
        too, a disk may be unmounted and come back, so the batch waits."""
        needed = needed_files(self.batch, self._directory)
        if self.batch.in_progress_at is None:
            needed = [await self._source()]
        return await self._context.on_thread(
            lambda: self._directory.parent.is_dir() and not all(map(Path.exists, needed))
        )

    async def _is_open(self, job: BatchJob) -> bool:
        """Open the job. If it cannot be read, raise CorruptJob and run again, since its files may
        be repaired; False if an early end is asked for."""
        try:
            await self._context.on_thread(job.open)
        except CorruptJob:
            if not self.asked_to_end.is_set():
                raise
            return False
        return True

    async def _give_up(self) -> None:
        """End a batch whose files cannot be read any more."""
        if await self._change("cancelled", of=("cancelling",)) is None:
            values = {"failed": self.batch.total, "errors": LOST}
            await self._change("failed", of=("validating", "in_progress", "finalizing"), **values)

    async def _begin(self) -> None:
        """Make the job when the lines are counted. A batch that is cancelled before that has no
        job; if its lines were counted when it was made, each still gets its result."""
        path = await self._source()
        total = self.batch.total or await self._checked(path)
        if not total:
            return
        facts = await self._unless_ended(self._context.engine.facts())
        if self._ending == "cancelled" and not self.batch.total:
            return
        known = facts or EngineFacts(self.batch.model, 1)
        await self._context.on_thread(begin, self.batch, self._directory, path, known, total)
        await self._change("in_progress", of=("validating",), total=total)
        if self.batch.in_progress_at is None and self.batch.total:
            now = int(time.time())
            await self._change("cancelling", of=("cancelling",), in_progress_at=now)

    async def _checked(self, path: Path) -> int:
        """The number of lines; 0 if their errors fail the batch, or it is cancelled."""
        if self._ending == "cancelled":
            return 0
        endpoint = self.batch.endpoint
        checked = await self._context.on_thread(check_lines, path, endpoint, self._is_wanted)
        if checked.stopped:
            return 0
        if checked.errors:
            await self._change("failed", of=("validating",), errors=checked.listed())
            return 0
        return checked.num_rows

    def _is_wanted(self) -> bool:
        return self._ending != "cancelled" and not self._abandoned

    async def _answer(self, job: BatchJob) -> None:
        """Have every row answered that has no result, unless an early end is asked for."""
        facts = await self._unless_ended(self._context.engine.facts())
        if facts is None:
            return
        try:
            await self._context.on_thread(job.check_model, facts)
        except JobChanged as changed:
            self.live.waiting = f"its first rows came from another model: {changed}"
            note(f"batch {self.batch.id} waits: {self.live.waiting}")
            await self.asked_to_end.wait()
            return
        dispatcher = self._context.dispatcher
        dispatcher.capacity = facts.capacity
        dispatcher.add(self)
        try:
            while not self.asked_to_end.is_set() and not self._is_answered():
                self._news.clear()
                await self._read_ahead(job)
                await self._keep(job)
                await self._wait_for_news()
        finally:
            await dispatcher.remove(self)
            await asyncio.shield(self._keep(job, at_once=True))

    def _is_answered(self) -> bool:
        return self._exhausted and not (self._ready or self._num_out or self._results)

    async def _wait_for_news(self) -> None:
        """Wait until something happened, or results are due for the journal."""
        if self._is_answered():
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(GROUP_SECONDS):
                await self._news.wait()
        if self._results and len(self._results) < GROUP:  # wait for a larger group
            due = self._oldest_result + GROUP_SECONDS - time.monotonic()
            await asyncio.sleep(min(max(due, 0.0), 0.05))

    async def _read_ahead(self, job: BatchJob) -> None:
        if self._exhausted or len(self._ready) > READ_ROWS // 2:
            return
        rows = await self._context.on_thread(job.next_rows, READ_ROWS, READ_BYTES)
        self._exhausted = not rows
        for row in rows:
            if row.error is None:
                self._ready.append(row)
            else:
                self._num_out += 1
                self._reject(row, bad(row.error.message))
        self._news.set()
        self._context.dispatcher.wake()

    async def _keep(self, job: BatchJob, *, at_once: bool = False) -> None:
        """Write results to the journal, if they are due."""
        waited = time.monotonic() - self._oldest_result
        due = len(self._results) >= GROUP or waited >= GROUP_SECONDS or self._exhausted
        if not self._results or not (due or at_once):
            return
        records, self._results = self._results, []
        counts = await self._context.on_thread(job.keep, records)
        self.live.completed, self.live.failed = counts
        num_failed = sum(record.failed for record in records)
        self._context.num_rows["failed"] += num_failed
        self._context.num_rows["completed"] += len(records) - num_failed
        self._tell_metrics(job)

    def _tell_metrics(self, job: BatchJob) -> None:
        live = self.live
        job.tell(
            {
                "time": time.time(),
                "began": live.began,
                "running": self._num_out,
                "waiting": len(self._ready),
                "prompt_tokens": live.prompt_tokens,
                "output_tokens": live.output_tokens,
                "finished": live.completed + live.failed - live.before,
            }
        )

    def take_row(self) -> WorkRow | None:
        if not self._ready:
            return None
        self._num_out += 1
        if len(self._ready) <= READ_ROWS // 2:
            self._news.set()
        return self._ready.popleft()

    async def answer(self, row: WorkRow) -> None:
        batch = self.batch
        asked = RowAsked(
            endpoint=batch.endpoint,
            body=row.asked["body"],
            key_id=batch.key_id,
            name=row_name(batch.id, row.row),
            created=batch.created_at,
            seed=row_seed(0, row.key),
        )
        try:
            found = await self._context.engine.answer(asked)
        except EngineDied:  # the dispatcher finds the row that caused it
            raise
        except ApiError as refused:
            self._reject(row, refused)
            return
        except Exception as error:  # a row without a record would keep its batch from ending
            fault = fault_of_row(error, "its line was read or its answer made")
            if fault is error:  # an error of the engine, not of the row
                raise
            self._result(row, error=str(fault), error_type="row_error")
            return
        self.live.prompt_tokens += found.prompt_tokens
        self.live.output_tokens += found.output_tokens
        self._result(
            row,
            outputs=found.outputs,
            finish_reasons=found.finish_reasons,
            prompt_tokens=found.prompt_tokens,
            output_tokens=found.output_tokens,
            extra=answered(found),
        )

    def blame(self, row: WorkRow) -> None:
        message = "the engine died with this request alone in its lane, more often than by chance"
        self._result(row, error=message, error_type="engine_crash")

    def _reject(self, row: WorkRow, refused: ApiError) -> None:
        """Record a refusal. A refused request has a response; a failure of the server has none."""
        is_refusal = refused.status < 500
        self._result(
            row,
            error=refused.message[:LONGEST_ERROR],
            error_type=refused.code or (INVALID if is_refusal else SERVER),
            extra=rejected(refused.status, refused.body()) if is_refusal else {},
        )

    def _result(self, row: WorkRow, **values: Any) -> None:
        self._num_out -= 1
        if not self._results:
            self._oldest_result = time.monotonic()
        record = ResultRecord(row.row, row.key, row.content, self._epoch, **values)
        self._results.append(record)
        self._news.set()

    async def _finish(self, job: BatchJob) -> None:
        """Write the files, then record them and the end of the batch in one transaction. After a
        cancel that comes meanwhile the batch is a cancelled one, with all its lines."""
        ending: Ending = self._ending or "completed"
        self._ending = ending
        if ending != "cancelled":
            await self._change("finalizing", of=("in_progress",), ending=ending)
        context = self._context
        written = await context.on_thread(write_out, self.batch, job, context.storage, ending)
        await context.database.write(partial(commit_end, ending=ending, written=written))

    async def _change(
        self, status: Status, *, of: tuple[Status, ...], **values: Any
    ) -> StoredBatch | None:
        """As batches.change. If the batch is in another state meanwhile, take that one."""

        def work(connection: sqlite3.Connection) -> tuple[StoredBatch | None, StoredBatch]:
            changed = batches.change(connection, self.batch.id, status, of=of, **values)
            return changed, changed or batches.get(connection, self.batch.id)

        changed, self.batch = await self._context.database.write(work)
        if changed is None and self.batch.status == "cancelling":
            self.end("cancelled")
        return changed

    async def _unless_ended(self, work: Coroutine[Any, Any, Made]) -> Made | None:
        """The result of the work; None, with the work cancelled, if an early end comes first."""
        task, end = asyncio.create_task(work), asyncio.create_task(self.asked_to_end.wait())
        try:
            await asyncio.wait((task, end), return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            for each in (task, end):
                each.cancel()
