"""One worker of a joined job: from its first claim to the merged output."""

from __future__ import annotations

import os
import secrets as randomness
import socket
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from quire.errors import JobChanged, JobLocked, JobStopped
from quire.jobs import job_setup
from quire.jobs.input.files import InputFile
from quire.jobs.input.work import Work, WorkRow
from quire.jobs.job_parts import make_work, opening_message
from quire.jobs.job_run import JobReport
from quire.jobs.join.chunks import ChunkReader, Chunks
from quire.jobs.join.claims import WORKERS, Beat, Claims, Workers
from quire.jobs.join.merge import merge
from quire.jobs.join.setup import LOOK_SECONDS, agreed, locked, refuse_what_cannot_join
from quire.jobs.options import JobOptions
from quire.jobs.store.durable import make_directory
from quire.jobs.store.journal import Journal
from quire.jobs.store.lock import JobLock
from quire.jobs.store.manifest import Manifest
from quire.jobs.store.record import ResultRecord
from quire.jobs.store.segments import scan
from quire.jobs.store.stamps import model_stamps
from quire.jobs.supervise.metrics import MetricsFile
from quire.jobs.supervise.progress import Progress, Watcher
from quire.jobs.supervise.rows_ahead import RowsAhead
from quire.jobs.supervise.starting import EngineStarts
from quire.jobs.supervise.stopping import StopSignals
from quire.jobs.supervise.supervisor import Supervisor
from quire.replicas.wire import Message


@dataclass(slots=True)
class _Begun:
    """A chunk that is being answered, with its numbers of sent, answered and selected rows."""

    sent: int = 0
    answered: int = 0
    counted: int = 0
    read: bool = False  # to its end


def join_job(
    options: JobOptions, command: Sequence[str], *, engine_command: Sequence[str], show: bool
) -> JobReport:
    """Answer chunks of the job until none is left, and merge if no other worker does."""
    refuse_what_cannot_join(options)
    job_dir = job_setup.job_directory(options)
    with StopSignals() as signals:
        with signals.at_once(), locked(job_dir):
            try:
                manifest, files, chunks = agreed(options, command, job_dir)
            finally:
                job_setup.remove_empty_job(job_dir)
        if manifest.status == "finished":
            return _merged(job_dir, signals)
        began = time.monotonic()
        worker = JoinWorker(options, job_dir, manifest, files, chunks, show=show)
        try:
            worker.run(signals, engine_command)
        finally:
            worker.close()
        merged, mine = _merged(job_dir, signals), worker.progress
        return replace(
            merged,
            num_before=max(0, merged.num_rows - mine.num_ok - mine.num_failed),
            seconds=time.monotonic() - began,
            prompt_tokens=mine.prompt_tokens,
            output_tokens=mine.output_tokens,
        )


class _DoneRows:
    """Rows that are answered already in this worker's journal, or in those of dead workers."""

    def __init__(self, journal: Journal) -> None:
        self._index = journal.index
        self.elsewhere: set[int] = set()

    def __contains__(self, row: int) -> bool:
        return row in self._index or row in self.elsewhere


class JoinWorker(Watcher):
    """Claims chunks, answers them, and watches the others."""

    def __init__(
        self,
        options: JobOptions,
        job_dir: Path,
        manifest: Manifest,
        files: list[InputFile],
        chunks: Chunks,
        *,
        show: bool,
    ) -> None:
        self._options, self._job_dir, self._manifest = options, job_dir, manifest
        self._chunks, self._reader = chunks, ChunkReader(files)
        name = f"{socket.gethostname()[:100]}-{os.getpid()}-{randomness.token_hex(4)}"
        self._home = job_dir / WORKERS / name
        make_directory(self._home)
        with ExitStack() as held:  # if one of these fails, the others are closed
            self._lock = JobLock.take(self._home)
            held.callback(self._lock.release)
            held.callback(Beat(self._home).end)
            self._journal = Journal.open(
                self._home,
                self._lock,
                first_epoch=1,
                job=manifest.id,
                num_replicas=len(options.places()),
            )
            held.callback(self._journal.close)
            self._claims = Claims(job_dir, name, len(chunks), Workers(job_dir))
            self.progress = Progress(MetricsFile(self._home), show=show)
            held.callback(self.progress.close)
            self._done = _DoneRows(self._journal)
            self._work: Work = make_work(options, manifest, files, self._done)
            self._held = held.pop_all()
        self._width = max(1, len(manifest.settings))
        self._begun: dict[int, _Begun] = {}
        self._ended = threading.Event()
        self._looked = 0.0

    def run(self, signals: StopSignals, engine_command: Sequence[str]) -> None:
        """Return when every chunk of the job is done, by whichever worker."""
        if self._claims.all_done:
            return
        opening = opening_message(self._manifest, self._options)
        starts = EngineStarts.of(self._options, opening, engine_command, self.note)
        rows = RowsAhead(self._rows(), self._work.evaluation_limit)
        try:
            Supervisor(
                self._journal,
                rows,
                starts.openings,
                epoch=self._lock.epoch,
                watcher=self,
                on_ready=self._check_model,
                should_stop=signals.asked,
                start=starts.start,
            ).run()
            self._finish_chunks()
        except JobStopped as stopped:
            raise JobStopped(
                f"{stopped}: what this worker answered is on disk. The same command goes on"
            ) from stopped
        finally:
            self._ended.set()
            rows.close()

    def _rows(self) -> Generator[WorkRow]:
        """The rows of all chunks that this worker claims, until every chunk is done."""
        while not self._ended.is_set():
            number = self._claims.take()
            if number is None:
                found = self._claims.take_over()
                if found is None:
                    if self._others_are_done():
                        return
                    self._ended.wait(LOOK_SECONDS)
                    continue
                number, owners = found
                self.note(f"quire: chunk {number} goes on here; {owners[-1]} is silent")
                self._read_journals(owners)
            yield from self._rows_of(number)

    def _others_are_done(self) -> bool:
        """Whether every chunk is done, except those that are being answered here."""
        return all(number in self._begun for number in self._claims.open_numbers())

    def _rows_of(self, number: int) -> Generator[WorkRow]:
        begun = self._begun[number] = _Begun()
        before = self._work.num_rows
        for row in self._reader.rows(self._chunks[number]):
            for made in self._work.made(row):
                begun.sent += 1
                yield made
        begun.counted = self._work.num_rows - before
        begun.read = True

    def _read_journals(self, owners: Sequence[str]) -> None:
        """Read the journals of dead workers, so that rows they finished are not done again."""
        for owner in owners:
            home = self._job_dir / WORKERS / owner
            if home.is_dir():
                index = scan(home, first_epoch=1, job=self._manifest.id).index
                self._done.elsewhere.update(index.rows())

    def _finish_chunks(self) -> None:
        """Mark the chunks whose rows are all on disk."""
        ready = [n for n, b in list(self._begun.items()) if b.read and b.answered >= b.sent]
        if not ready:
            return
        self._journal.commit()
        for number in ready:
            self._claims.finish(number, self._begun[number].counted)
            del self._begun[number]

    def _check_model(self, facts: Message) -> None:
        """Every worker computes with the same files and numbers as the first."""
        stamps = model_stamps(facts).items()
        found = {name: tuple(file.hashed() for file in files) for name, files in stamps}
        with locked(self._job_dir):
            known = Manifest.load(self._job_dir)
            arithmetic = facts.get("arithmetic", {})
            if not (known.model_files or known.arithmetic):
                known.changed(**found, arithmetic=arithmetic).save(self._job_dir)
                return
        differences, _ = known.differences(known.changed(**found))
        if known.arithmetic != arithmetic:
            differences.append(f"arithmetic: {dict(known.arithmetic)} -> {arithmetic}")
        if differences:
            listed = "\n  ".join(differences)
            raise JobChanged(
                f"this machine would compute otherwise than those before:\n  {listed}\nGive it the "
                "same files, and --option for what it chose otherwise."
            )

    def result(self, record: ResultRecord) -> None:
        super().result(record)
        begun = self._begun.get(self._chunks.of_row(record.row // self._width))
        if begun is not None:
            begun.answered += 1

    def tick(self) -> None:
        super().tick()
        if time.monotonic() - self._looked > LOOK_SECONDS / 2:
            self._looked = time.monotonic()
            self._finish_chunks()

    def close(self) -> None:
        self._held.close()


def _merged(job_dir: Path, signals: StopSignals) -> JobReport:
    """Merge, or wait for the worker that does."""
    while True:
        manifest = Manifest.load(job_dir)
        if manifest.status == "finished" and Path(manifest.output).exists():
            job_setup.check_output(manifest, Path(manifest.output))
            rows, failed = manifest.num_rows or 0, manifest.num_failed or 0
            return JobReport(Path(manifest.output), job_dir, rows, failed, rows)
        if signals.asked():
            raise JobStopped("stopped while another worker merges; run `quire merge` to finish")
        try:
            lock = JobLock.take(job_dir)
        except JobLocked:
            time.sleep(LOOK_SECONDS / 4)
            continue
        with lock:
            return merge(job_dir, lock)
