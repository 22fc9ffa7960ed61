"""One run of a job, from taking the lock to renaming the finished output."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quire.errors import Interrupted, JobChanged, JobStopped
from quire.jobs import job_setup
from quire.jobs.first_rows import check_first_rows
from quire.jobs.input.count import Counting
from quire.jobs.input.files import InputFile
from quire.jobs.input.work import Work, WorkRow
from quire.jobs.job_parts import make_work, opening_message
from quire.jobs.options import JobOptions
from quire.jobs.output.output import write_output
from quire.jobs.refusals import refuse_written_input
from quire.jobs.store import secrets
from quire.jobs.store.journal import FULL, Journal
from quire.jobs.store.keys import KeyTable
from quire.jobs.store.lock import JobLock
from quire.jobs.store.manifest import Manifest
from quire.jobs.store.place import claim
from quire.jobs.store.record import ResultRecord
from quire.jobs.store.segments import RecordReader, ResultIndex
from quire.jobs.store.stamps import FileStamp, Hashing, model_stamps
from quire.jobs.supervise.failures import Failures, failures_of
from quire.jobs.supervise.metrics import MetricsFile
from quire.jobs.supervise.progress import Progress, Watcher
from quire.jobs.supervise.rows_ahead import RowsAhead
from quire.jobs.supervise.starting import EngineStarts
from quire.jobs.supervise.stopping import StopSignals
from quire.jobs.supervise.supervisor import COMMAND, Supervisor
from quire.jobs.transcripts import write_transcripts
from quire.replicas.replica import EngineLink
from quire.replicas.wire import Message

_HASH_PATIENCE = 5.0  # seconds to wait for hashes when everything else is done


@dataclass(frozen=True, slots=True)
class JobReport:
    output: Path
    job_dir: Path
    num_rows: int
    num_failed: int
    num_before: int  # rows answered by other workers or earlier runs, and those kept by --reuse
    seconds: float = 0.0
    prompt_tokens: int = 0  # of this run
    output_tokens: int = 0
    num_restarts: int = 0
    failures: tuple[Failures, ...] = ()  # by the type of error; empty if nothing was left to do

    @property
    def num_ok(self) -> int:
        return self.num_rows - self.num_failed


def run_job(
    options: JobOptions,
    command: Sequence[str],
    *,
    engine_command: Sequence[str] = COMMAND,
    show: bool = True,
) -> JobReport:
    """Begin the job or go on with it, until every row has its result."""
    job_dir = job_setup.job_directory(options)
    files: list[InputFile] = []
    with ExitStack() as leaving:  # closes each of these, even if another one raises
        lock = leaving.enter_context(JobLock.take(job_dir))
        leaving.callback(job_setup.remove_empty_job, job_dir)
        leaving.callback(lambda: job_setup.drop_refused(options, job_dir, files))
        with StopSignals() as signals:
            with signals.at_once():  # reading stdin or fetching from the Hub may take long
                before = job_setup.manifest_before(options, job_dir)
                files = job_setup.input_files(options, job_dir)
                refuse_written_input(options, job_dir, files)
                now = job_setup.manifest_of(options, files, command)
                manifest = job_setup.agreed(before, now, lock, reuse=options.reuse)
                if before is not None and job_setup.is_finished(before, manifest, options):
                    job_setup.check_model_on_disk(before)
                    job_setup.check_output(before, Path(manifest.output))
                    num_rows, num_failed = before.num_rows or 0, before.num_failed or 0
                    return JobReport(Path(before.output), job_dir, num_rows, num_failed, num_rows)
                has_work = check_first_rows(options, manifest, files)
            run = JobRun(options, job_dir, lock, files, manifest, show=show)
            # What a run before has answered is known when its journal is read.
            return run.run(signals, engine_command, start_at_once=has_work and before is None)


class JobRun(Watcher):
    """A run that has the lock and knows what the job is."""

    def __init__(
        self,
        options: JobOptions,
        job_dir: Path,
        lock: JobLock,
        files: list[InputFile],
        manifest: Manifest,
        *,
        show: bool,
    ) -> None:
        self._options, self._job_dir, self._lock = options, job_dir, lock
        self._files, self._manifest = files, manifest
        self._began = time.monotonic()
        self.progress = Progress(MetricsFile(job_dir), show=show)
        self._hashing: dict[str, Hashing] = {}
        self._counting: Counting | None = None
        self._work: Work | None = None
        self._index = ResultIndex()  # of what is on disk

    def run(
        self, signals: StopSignals, engine_command: Sequence[str], *, start_at_once: bool
    ) -> JobReport:
        opening = opening_message(self._manifest, self._options)
        starts = EngineStarts.of(self._options, opening, engine_command, self.note)
        # Engines that are needed start first, and load while everything else is prepared.
        engines = starts.start_all() if start_at_once else []
        try:
            return self._answered(signals, starts, engines)
        except JobStopped as stopped:
            raise self._stopped(stopped, signals) from stopped
        except OSError as error:
            if error.errno not in FULL:
                raise
            full = JobStopped(f"no room left: {error}")
            raise self._stopped(full, signals) from error
        finally:
            for engine in engines:
                engine.end()
            self.progress.close()

    def _answered(
        self, signals: StopSignals, starts: EngineStarts, engines: Sequence[EngineLink]
    ) -> JobReport:
        """Run until every row has its record, then write the output."""
        self._begin()
        journal = self._opened_journal(len(starts.openings))
        work = make_work(self._options, self._manifest, self._files, journal.index)
        self._work, self._counting = work, Counting(self._files)
        rows = self._rows(journal, work)
        supervisor = Supervisor(
            journal,
            rows,
            starts.openings,
            epoch=self._lock.epoch,
            watcher=self,
            on_ready=self._check_model,
            should_stop=signals.asked,
            start=starts.start,
            engines=engines,
        )
        try:
            supervisor.run()
        finally:
            rows.close()
            journal.close()
        if not supervisor.has_begun:
            job_setup.check_model_on_disk(self._manifest)
        num_failed = self._finish(journal, work, signals)
        return JobReport(
            Path(self._manifest.output),
            self._job_dir,
            work.num_rows,
            num_failed,
            self.progress.before,
            time.monotonic() - self._began,
            self.progress.prompt_tokens,
            self.progress.output_tokens,
            supervisor.num_restarts,
            failures_of(self._job_dir, journal.index) if num_failed else (),
        )

    def _begin(self) -> None:
        """Write the manifest, in place of an earlier one."""
        if self._options.overwrite:
            job_setup.remove_old_files(self._job_dir, self._files)
        self._manifest.save(self._job_dir)
        claim(Path(self._manifest.output), self._job_dir)

    def _opened_journal(self, num_replicas: int) -> Journal:
        manifest = self._manifest
        journal = Journal.open(
            self._job_dir,
            self._lock,
            first_epoch=manifest.first_epoch,
            job=manifest.id,
            reuse_from=manifest.reuse_from,
            retry=self._options.retry_failed,
            num_replicas=num_replicas,
        )
        for damage in journal.damages:
            self.note(f"quire: {damage} is damaged; its row is computed again")
        self._index = journal.index
        self.progress.before = sum(journal.index.counts())
        self._hash("inputs", manifest.inputs)
        return journal

    def _rows(self, journal: Journal, work: Work) -> RowsAhead[WorkRow | ResultRecord]:
        rows = reused(work.rows(), self._job_dir, journal.older, self._lock.epoch)
        return RowsAhead(rows, work.evaluation_limit)

    def _finish(self, journal: Journal, work: Work, signals: StopSignals) -> int:
        """Write the output and the final manifest; returns how many rows failed."""
        write = write_transcripts if self._manifest.kind == "transcribe" else write_output
        if self._manifest.kind == "batch":
            from quire.jobs.batch import write_batch as write  # seldom needed
        try:
            with signals.at_once():
                write(self._job_dir, self._manifest, journal.index, work.num_rows)
        except JobChanged:
            # Some rows may have been read before the input changed, and others after. Even if the
            # old input is put back, the next run must compare each row with its record (--reuse).
            self._hashing.pop("inputs", None)
            self._change(inputs=tuple(file.read_while_changed() for file in self._manifest.inputs))
            raise
        num_failed = journal.index.counts()[1]
        deadline = time.monotonic() + _HASH_PATIENCE
        for hashing in self._hashing.values():
            hashing.join(max(0.0, deadline - time.monotonic()))
        self._take_hashes()
        self._manifest = self._manifest.finished(work.num_rows, num_failed)
        self._manifest.save(self._job_dir)
        return num_failed

    def _stopped(self, stopped: JobStopped, signals: StopSignals) -> BaseException:
        """The error with a note on what is on disk and how to continue; a Ctrl-C is Interrupted."""
        self._take_hashes()
        with suppress(OSError):  # of a full disk: the manifest stays as it is
            self._change(status="stopped")
        done = sum(self._index.counts())
        token = " with HF_TOKEN set to the token" if secrets.of(self._options.options) else ""
        described = (
            f"{stopped}: {done:,} rows are on disk. To continue{token}:\n  "
            f"{shlex.join(self._manifest.command)}"
        )
        return (
            Interrupted(described) if signals.received == signal.SIGINT else JobStopped(described)
        )

    def _check_model(self, facts: Message) -> None:
        """The engine's model must be the one that the rows before came from."""
        found = model_stamps(facts)
        job_setup.check_model(self._manifest, found)
        known = {f.path: f for name in found for f in getattr(self._manifest, name) if f.sha256}
        for name, files in found.items():
            self._hash(name, tuple(known.get(file.path, file) for file in files))
        self._change(**found, arithmetic=facts.get("arithmetic", {}))

    def _hash(self, name: str, files: tuple[FileStamp, ...]) -> None:
        if files:
            self._hashing[name] = Hashing(files)

    def _take_hashes(self) -> None:
        for name, hashing in list(self._hashing.items()):
            if not hashing.is_alive():
                self._manifest = self._manifest.changed(**{name: hashing.files})
                del self._hashing[name]

    def _change(self, **values: Any) -> None:
        self._manifest = self._manifest.changed(**values)
        self._manifest.save(self._job_dir)

    def tick(self) -> None:
        if self._hashing and not any(h.is_alive() for h in self._hashing.values()):
            self._take_hashes()
            self._manifest.save(self._job_dir)
        if self._work is not None and self._counting is not None:
            self.progress.total = self._work.total(self._counting.num_rows)
        super().tick()


def reused(
    rows: Iterator[WorkRow], job_dir: Path, older: Iterable[int], epoch: int
) -> Generator[WorkRow | ResultRecord]:
    """The rows of a changed job. A row that an older record answers is replaced by that record,
    with the row's present number and epoch.

    Records are found by the content hash of a row, so rows may have moved. If answers depend on
    noise, the hash includes the row's seed, so that only a row of the same key matches.
    """
    with RecordReader(job_dir) as reader:
        places = KeyTable()
        for position in older:
            places.put(reader.read(position).content, position)
        for row in rows:
            place = places.get(row.content) if row.error is None else None
            record = None if place is None else reader.read(place)
            if record is not None and record.content == row.content:
                yield replace(record, row=row.row, key=row.key, epoch=epoch)
            else:
                yield row
