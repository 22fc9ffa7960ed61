"""Merges the journals of all workers into one, and writes the output from it.

Each row is taken once: an answer wins over a failure, else the first worker by name. After a kill
the merge continues where it stopped. The output gets its name when it is complete.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from quire.errors import InvalidOption, JobStopped
from quire.jobs.job_run import JobReport
from quire.jobs.join.chunks import NAME as CHUNKS
from quire.jobs.join.chunks import Chunks
from quire.jobs.join.claims import WORKERS, Claims, Workers
from quire.jobs.output.output import write_output
from quire.jobs.store.journal import Journal
from quire.jobs.store.lock import JobLock
from quire.jobs.store.manifest import Manifest
from quire.jobs.store.segments import RecordReader, ResultIndex, scan
from quire.jobs.supervise.failures import failures_of

GROUPS = 64  # times as many records per sync as a run has: all are on disk already


def merge_output(job_dir: Path) -> JobReport:
    """`quire merge`: JobLocked while a worker begins or merges the job."""
    with JobLock.take(job_dir) as lock:
        return merge(job_dir, lock)


def merge(job_dir: Path, lock: JobLock) -> JobReport:
    """Write the output of a joined job all of whose chunks are done."""
    if not (job_dir / CHUNKS).exists():
        raise InvalidOption(
            f"{job_dir} is no job of --join, so there is nothing to merge", parameter="job"
        )
    manifest, chunks = Manifest.load(job_dir), Chunks.load(job_dir)
    counts = Claims(job_dir, "merge", len(chunks), Workers(job_dir)).counts()
    if len(counts) < len(chunks):
        raise JobStopped(
            f"{len(counts):,} of {len(chunks):,} chunks are done. Run the job's command to answer "
            "the others; its last worker merges."
        )
    num_rows = sum(counts.values())
    first_epoch, job = manifest.first_epoch, manifest.id
    journal = Journal.open(job_dir, lock, first_epoch=first_epoch, job=job, num_replicas=GROUPS)
    try:
        _gather(job_dir, journal, lock.epoch, job)
    finally:
        journal.close()
    write_output(job_dir, manifest, journal.index, num_rows)
    num_failed = journal.index.counts()[1]
    manifest = Manifest.load(job_dir).finished(num_rows, num_failed)
    manifest.save(job_dir)
    failures = failures_of(job_dir, journal.index) if num_failed else ()
    output = Path(manifest.output)
    return JobReport(output, job_dir, num_rows, num_failed, num_rows, failures=failures)


def _gather(job_dir: Path, journal: Journal, epoch: int, job: str | None) -> None:
    """Append to the job's own journal what it does not have yet, in the order of rows."""
    homes = sorted(path for path in (job_dir / WORKERS).iterdir() if path.is_dir())
    indexes = [scan(home, first_epoch=1, job=job).index for home in homes]
    readers = [RecordReader(home) for home in homes]
    try:
        for row in _rows(indexes):
            if row in journal.index and not journal.index.failed(row):
                continue
            worker = min(
                (i for i, index in enumerate(indexes) if row in index),
                key=lambda i: (indexes[i].failed(row), i),  # noqa: B023
            )
            position = indexes[worker].position(row)
            if position is None or (row in journal.index and indexes[worker].failed(row)):
                continue
            journal.append(replace(readers[worker].read(position), epoch=epoch))
    finally:
        for reader in readers:
            reader.close()


def _rows(indexes: list[ResultIndex]) -> list[int]:
    return sorted({row for index in indexes for row in index.rows()})
