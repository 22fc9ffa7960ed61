"""The journal: results are appended, synced in groups, and acknowledged after the sync.

At most GROUP results for each replica, or those of GROUP_SECONDS, are unacknowledged at any time. A
full disk loses no acknowledged result, and room for the last group is reserved.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from quire.base.system import sync, sync_data
from quire.errors import JobStopped
from quire.jobs.store.durable import keep_room, open_own, sync_directory
from quire.jobs.store.lock import JobLock
from quire.jobs.store.record import ResultRecord, fitted
from quire.jobs.store.segments import Damage, ResultIndex, Scan, position_of, scan, segment_name

GROUP, GROUP_SECONDS = 64, 1.0
SEGMENT_BYTES = 64 << 20
RESERVE, RESERVE_BYTES = "reserve", 256 << 10
# The errors of a disk that has no room left.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(slots=True)
class _Segment:
    """One file being appended to; `pending` are lines not yet on disk, with their rows."""

    number: int
    file: int
    size: int  # of what is written and synced
    pending: list[tuple[int, bytes]] = field(default_factory=list)

    def positions(self) -> list[tuple[int, int]]:
        found, at = [], self.size
        for row, line in self.pending:
            found.append((row, position_of(self.number, at)))
            at += len(line)
        return found


class Journal:
    """Writes a job's results; the lock makes it the only writer.

    `index` has acknowledged rows only. After an OSError nothing more may be appended: the next
    process that opens the job reads what really is on disk.
    """

    def __init__(
        self,
        job_dir: Path,
        lock: JobLock,
        found: Scan,
        *,
        job: str | None,
        clock: Callable[[], float],
        group: int,
    ) -> None:
        self._job_dir, self._lock, self._job, self._clock = job_dir, lock, job, clock
        self._group = group  # results that are synced together
        self.index: ResultIndex = found.index
        self.damages: tuple[Damage, ...] = found.damages
        self.older: tuple[int, ...] = found.older
        self._oldest_pending: float | None = None
        self._num_pending, self._broken = 0, False
        lock.raise_to(found.last_epoch + 1)
        last = max((number for number in found.ends if number), default=1)
        self._results = self._opened(last, found.ends.get(last, 0))
        self._errors = self._opened(0, found.ends.get(0, 0))
        self._keep_reserve()

    @classmethod
    def open(
        cls,
        job_dir: Path,
        lock: JobLock,
        *,
        first_epoch: int,
        job: str | None = None,
        reuse_from: int | None = None,
        retry: bool = False,
        clock: Callable[[], float] = time.monotonic,
        num_replicas: int = 1,
    ) -> Journal:
        """Read the records on disk, cut off a line that a kill left half written, and append after
        it. `job` is the manifest's id, which every record has."""
        found = scan(job_dir, first_epoch=first_epoch, job=job, older_from=reuse_from, retry=retry)
        lock.raise_to(first_epoch)  # records of an earlier epoch would be ignored by readers
        return cls(job_dir, lock, found, job=job, clock=clock, group=GROUP * num_replicas)

    def _opened(self, number: int, end: int) -> _Segment:
        path = self._job_dir / segment_name(number)
        file = open_own(path, os.O_WRONLY)
        if os.fstat(file).st_size > end:
            os.ftruncate(file, end)
            sync(file)
        # Also if the file exists: the process that made it may have been killed before its sync.
        sync_directory(self._job_dir)
        return _Segment(number, file, end)

    def append(self, record: ResultRecord, *, group: int = 0) -> ResultRecord:
        """Append a result, and return it as stored. It is acknowledged at the next commit, which
        may be now. A larger `group` is for results that are easily made again."""
        record, line = fitted(record, self._job)
        segment = self._errors if record.failed else self._results
        segment.pending.append((record.row, line))
        self._num_pending += 1
        if self._oldest_pending is None:
            self._oldest_pending = self._clock()
        if self._num_pending >= (group or self._group):
            self.commit()
        return record

    @property
    def seconds_left(self) -> float | None:
        """How long until a commit is due; None if nothing is pending."""
        if self._oldest_pending is None:
            return None
        return max(0.0, self._oldest_pending + GROUP_SECONDS - self._clock())

    def commit_if_due(self) -> None:
        if self.seconds_left == 0.0:
            self.commit()

    def commit(self) -> None:
        """Make everything that was appended durable."""
        if not self._num_pending or self._broken:
            return
        self._lock.check()
        try:
            self._write(self._errors)
            self._write(self._results)
            self._num_pending, self._oldest_pending = 0, None
            if self._results.size >= SEGMENT_BYTES:
                self._roll()
        except OSError as error:
            self._broken = True
            if error.errno not in FULL:
                raise self._uncertain(error) from error
            self._save_last_group(error)

    def _write(self, segment: _Segment) -> None:
        if not segment.pending:
            return
        data, at = b"".join(line for _, line in segment.pending), segment.size
        view = memoryview(data)
        while view:
            written = os.pwrite(segment.file, view, at)
            view, at = view[written:], at + written
        sync_data(segment.file)
        for row, position in segment.positions():
            self.index.put(row, position)
        segment.size, segment.pending = at, []

    def _save_last_group(self, error: OSError) -> NoReturn:
        """The disk is full: free the reserved room, write the pending results, then stop."""
        lost = 0
        try:
            (self._job_dir / RESERVE).unlink(missing_ok=True)
            for segment in (self._errors, self._results):
                os.ftruncate(segment.file, segment.size)
                self._write(segment)
        except OSError:
            lost = len(self._errors.pending) + len(self._results.pending)
        redone = f"{lost} finished rows found no room and are computed again" if lost else ""
        raise JobStopped(
            f"the disk of {self._job_dir} is full ({error.strerror}). What was acknowledged is "
            f"safe. {redone or 'No finished row was lost'}; free some room first"
        ) from error

    def _uncertain(self, error: OSError) -> OSError:
        rows = sorted(row for s in (self._errors, self._results) for row, _ in s.pending)
        said = "no further file for results could be made; every finished row"
        if rows:
            some = f"row {rows[0]}" if len(rows) == 1 else f"{len(rows)} rows from {rows[0]} on"
            said = f"writing the results of {some} failed, so they are uncertain; everything before"
        said = f"{error.strerror}: {said} is safe. Run the same command when the disk is well again"
        return OSError(error.errno, said, str(self._job_dir))

    def _roll(self) -> None:
        full, self._results = self._results, self._opened(self._results.number + 1, 0)
        os.close(full.file)
        self._keep_reserve()

    def _keep_reserve(self) -> None:
        """Reserve room for one last group. The job begins even if there is no room for that."""
        keep_room(self._job_dir / RESERVE, RESERVE_BYTES)

    def close(self) -> None:
        """Commit what is pending and close the files."""
        try:
            self.commit()
        finally:
            self._broken = True
            for segment in (self._results, self._errors):
                if segment.file >= 0:
                    os.close(segment.file)
                    segment.file = -1
            (self._job_dir / RESERVE).unlink(missing_ok=True)
