"""The service behind files and batches: it stores them, runs batches, and removes what expired.

Everything acknowledged is in the database and on disk. `start` continues every batch that has not
ended; `stop` writes all finished results to the journals, and the next start does the rest.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
import traceback
from collections import defaultdict
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from quire.base.notes import note
from quire.errors import JobStopped
from quire.jobs.store.journal import FULL
from quire.openai_api.errors import ApiError
from quire.server import batches, files, uploads
from quire.server.batch_context import BatchContext, Live
from quire.server.batch_dispatch import Dispatcher
from quire.server.batch_engine import BatchEngine
from quire.server.batch_runner import BatchRun
from quire.server.batch_states import ENDS, LIVE
from quire.server.batches import BatchObject, StoredBatch
from quire.server.database import Database, Work
from quire.server.files import StoredFile
from quire.server.links import Links
from quire.server.storage import Storage

MOST_RUNNING = 64  # batches of a key that run at once; further ones wait until one ends
THREADS = 4
SWEEP_SECONDS = 60.0
KEPT_AFTER_END = 30 * 86400  # seconds that an ended batch without files stays in the database
AGAIN_SECONDS = 30.0  # until a batch is run again after a full disk or a bug
_NO_ROOM = "the disk of the server is full"
_FAILED = "the server failed on this batch, and tries it again"


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The data folder and its limits. The quota is for one key, in bytes of its files."""

    data_dir: Path
    max_file_bytes: int = 2 << 30
    quota_bytes: int | None = None
    max_live_batches: int = 1000  # of one key


class BatchService:
    """Holds the data folder from the moment it is made until `close`."""

    def __init__(self, settings: StoreSettings) -> None:
        self.settings = settings
        self.storage = Storage(settings.data_dir)
        try:
            self.database = Database(self.storage.database)
        except BaseException:
            self.storage.close()
            raise
        self.links = Links()
        self._threads = ThreadPoolExecutor(THREADS, "quire-batches")
        self._context: BatchContext | None = None
        self._runs: dict[str, BatchRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._free = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(MOST_RUNNING))
        self._num_rows = {"completed": 0, "failed": 0}

    async def start(self, engine: BatchEngine) -> None:
        """Remove what a kill left behind, and continue every batch that has not ended."""
        known = await self.database.read(_storage_names)
        await asyncio.to_thread(self.storage.sweep, *known)
        dispatcher = Dispatcher()
        self._context = BatchContext(
            self.database, self.storage, engine, dispatcher, self._threads, self._num_rows
        )
        self._spawn(dispatcher.run())
        self._spawn(self._sweep_now_and_then())
        for batch in await self.database.read(batches.live):
            self._run(batch)

    async def stop(self) -> None:
        """Stop all runs; finished results are in the journals."""
        self._context = None  # from here on no batch begins
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def close(self) -> None:
        """Release the data folder; a second call does nothing."""
        self._threads.shutdown()
        self.database.close()
        self.storage.close()

    async def create(self, batch: StoredBatch, claim_input: Work[Any]) -> None:
        """Make the batch and its claim on its input file durable, and begin it. 429 if the key has
        too many batches."""
        most = self.settings.max_live_batches

        def work(connection: sqlite3.Connection) -> None:
            if batches.num_live(connection, batch.key_id) >= most:
                raise ApiError(
                    429,
                    f"this key has {most:,} batches that have not ended; wait for one of them",
                    code="too_many_batches",
                    type="rate_limit_error",
                    headers=(("retry-after", "60"), ("x-should-retry", "false")),
                )
            claim_input(connection)
            batches.insert(connection, batch)

        await self.database.write(work)
        self._run(batch)

    async def cancel(
        self, key_id: str, batch_id: str, kinds: tuple[str, ...] = batches.KINDS
    ) -> StoredBatch:
        batch = await self.database.write(
            lambda connection: batches.cancel(connection, key_id, batch_id, kinds)
        )
        if batch.id in self._runs:
            self._runs[batch.id].end("cancelled")
        return batch

    def live(self, batch_id: str) -> Live | None:
        """The state of a batch while it runs, else None."""
        run = self._runs.get(batch_id)
        return None if run is None else run.live

    def as_object(self, batch: StoredBatch) -> BatchObject:
        """The batch as clients read it, with the counts of this moment."""
        live = self.live(batch.id)
        made = batches.as_object(batch, waiting=live.waiting if live is not None else None)
        if live is not None and batch.is_live:
            made["request_counts"] = {
                "total": batch.total,
                "completed": min(live.completed, batch.total),
                "failed": min(live.failed, batch.total),
            }
        return made

    def num_by_status(self) -> Mapping[str, int]:
        """How many batches of all keys are in each state; blocks for the database."""
        return self.database.submit_read(_by_status).result()

    def num_rows(self) -> Mapping[str, int]:
        """Rows written to journals since the server began."""
        return dict(self._num_rows)

    async def delete_file(self, key_id: str, file_id: str) -> StoredFile:
        file = await self.database.write(
            lambda connection: files.delete(connection, key_id, file_id), frees=True
        )
        await self._remove([file.storage])
        await self._remove_jobs([file])
        return file

    async def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            await asyncio.to_thread(self.storage.remove_file, name)
        await self.database.keep_room()

    async def delete(self, key_id: str, batch_id: str, kinds: tuple[str, ...]) -> StoredBatch:
        """Delete a batch that has ended, with its input and its output files."""

        def work(connection: sqlite3.Connection) -> tuple[StoredBatch, list[StoredFile]]:
            batch = batches.delete(connection, key_id, batch_id, kinds)
            return batch, files.take_of_batch(connection, batch.files)

        batch, gone = await self.database.write(work, frees=True)
        await self._remove(file.storage for file in gone)
        await asyncio.to_thread(self.storage.remove_batch, batch.storage)
        return batch

    async def sweep(self) -> None:
        """Remove the files, uploads, batches and links whose time is over."""
        self.links.drop_old()
        now = int(time.time())
        gone = await self.database.write(partial(files.take_expired, now=now), frees=True)
        await self._remove(file.storage for file in gone)
        await self._remove(await self.database.write(partial(uploads.take_expired, now=now)))
        await self._remove_jobs(gone)
        old = await self.database.write(
            partial(batches.take_old, ended_before=now - KEPT_AFTER_END)
        )
        for batch in old:
            await asyncio.to_thread(self.storage.remove_batch, batch.storage)

    async def _remove_jobs(self, gone: list[StoredFile]) -> None:
        """Remove the journals of batches whose last output was deleted, since a deleted output must
        not stay on disk in another form."""
        for file in gone:
            if file.purpose != files.BATCH_OUTPUT:
                continue
            batch = await self.database.read(partial(batches.without_outputs, file_id=file.id))
            if batch is not None:
                await asyncio.to_thread(self.storage.remove_batch, batch.storage)

    async def _sweep_now_and_then(self) -> None:
        while True:
            try:
                await self.sweep()
            except Exception as error:  # such as a full disk: it is tried again in any case
                note(f"files whose time is over could not be removed: {_where(error)}")
            await asyncio.sleep(SWEEP_SECONDS)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            note(f"a part of the server that runs batches ended: {_where(error)}")

    def _run(self, batch: StoredBatch) -> None:
        if self._context is not None:
            run = self._runs[batch.id] = BatchRun(batch, self._context)
            self._spawn(self._run_to_its_end(run))

    async def _run_to_its_end(self, run: BatchRun) -> None:
        """Run the batch until it has ended or the server stops, and again after a full disk or a
        bug. A failure while it is being stopped counts as the stop."""
        batch_id = run.batch.id
        try:
            while not await self._has_ended(run) and self._context is not None:
                run = self._runs[batch_id] = await self._again(run)
        finally:
            self._runs.pop(batch_id, None)

    async def _again(self, run: BatchRun) -> BatchRun:
        """A new run of the same batch, after a pause, when the database can be read."""
        while True:
            await asyncio.sleep(AGAIN_SECONDS)
            try:
                batch = await self.database.read(partial(batches.get, batch_id=run.batch.id))
            except sqlite3.Error as error:
                note(f"batch {run.batch.id} waits: {_FAILED} ({_where(error)})")
                continue
            return run.again(batch)

    async def _has_ended(self, run: BatchRun) -> bool:
        left = max(0.0, run.batch.expires_at - time.time())
        timer = asyncio.get_running_loop().call_later(left, run.end, "expired")
        try:
            async with self._place(run):
                await run.run()
            return True
        except Exception as error:  # the batch is on disk, and is tried again after any failure
            is_full = isinstance(error, OSError) and error.errno in FULL
            full = is_full or isinstance(error, JobStopped)
            run.live.waiting = _NO_ROOM if full else _FAILED
            note(f"batch {run.batch.id} waits: {run.live.waiting} ({_where(error)})")
            return False
        finally:
            timer.cancel()

    @asynccontextmanager
    async def _place(self, run: BatchRun) -> AsyncIterator[None]:
        """A place among the running batches; one that is to end early needs none."""
        free = self._free[run.key_id]
        place = asyncio.create_task(free.acquire())
        end = asyncio.create_task(run.asked_to_end.wait())
        try:
            await asyncio.wait((place, end), return_when=asyncio.FIRST_COMPLETED)
            yield
        finally:
            end.cancel()
            if place.done() and not place.cancelled():
                free.release()
            place.cancel()


def _where(error: BaseException) -> str:
    """The type of an error and its place in the code; its text may quote a prompt."""
    frames = traceback.extract_tb(error.__traceback__)
    at = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return type(error).__name__ + at


def _storage_names(connection: sqlite3.Connection) -> tuple[set[str], set[str]]:
    """The storage names in the database: of files and parts of uploads, and of batches."""
    names = [
        {row["storage"] for row in connection.execute(f"SELECT storage FROM {table}")}
        for table in ("files", "upload_parts", "batches")
    ]
    return names[0] | names[1], names[2]


def _by_status(connection: sqlite3.Connection) -> dict[str, int]:
    found = connection.execute("SELECT status, count(*) AS num FROM batches GROUP BY status")
    return dict.fromkeys((*LIVE, *ENDS), 0) | {row["status"]: row["num"] for row in found}
