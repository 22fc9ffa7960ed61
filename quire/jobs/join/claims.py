"""Who answers which chunk: a file for each claim, made so that only one worker can make it.

    claims/000012/345.0      chunk 12345, claimed by the worker whose name is in the file
    claims/000012/345.1      claimed again, after that worker had died
    claims/000012/345.done   answered; how many rows of it count

A worker increments the number in its file `beat`. It is taken for dead if the number stays the same
for the time of a lease, by the clock of the worker that watches; sooner if its lock is free, and at
once if both run under one kernel, which frees a lock only when its holder ends. If the worker was
only suspended, its chunk is answered twice, and merging keeps one answer of each row.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from quire.base.system import sync
from quire.errors import CorruptJob
from quire.jobs.store.durable import make_directory, open_own
from quire.jobs.store.lock import holder

CLAIMS, WORKERS, BEAT = "claims", "workers", "beat"
BEAT_SECONDS, LEASE_SECONDS = 5.0, 60.0
FREE_LOCK_BEATS = 3  # missed beats after which a worker whose lock is free is dead
IN_FOLDER = 1000
_DONE = ".done"
_LONGEST = 4096  # bytes that are read of a claim or a beat
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@lru_cache(maxsize=1)
def boot_id() -> bytes:
    """An id that is the same for all processes under this kernel, also in containers, until the
    next boot; empty if the system has none."""
    try:
        return _BOOT_ID.read_bytes().strip()
    except OSError:
        return b""


class Beat(threading.Thread):
    """Increments a number in a file as long as this process lives."""

    def __init__(self, worker_dir: Path) -> None:
        super().__init__(name="quire-beat", daemon=True)
        self._path, self._ended = worker_dir / BEAT, threading.Event()
        self._count = 0
        self._write()
        self.start()

    def _write(self) -> None:
        # Opened and closed each time: on NFS others see the number only after a close.
        number = open_own(self._path, os.O_WRONLY)
        os.pwrite(number, b"%20d\n%s\n" % (self._count, boot_id()), 0)
        os.close(number)

    def run(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            self._count += 1
            try:
                self._write()
            except OSError:
                continue  # the disk cannot be reached: if that lasts, the lease ends

    def end(self) -> None:
        self._ended.set()
        self.join()


@dataclass(slots=True)
class _Seen:
    beat: bytes
    since: float


class Workers:
    """Which workers are alive, as far as this one can see."""

    def __init__(self, job_dir: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._dir, self._clock = job_dir / WORKERS, clock
        self._seen: dict[str, _Seen] = {}

    def is_dead(self, worker: str) -> bool:
        """Whether the worker's beat stood still for a lease, or its lock shows that it ended."""
        beat, now = self._beat(worker), self._clock()
        is_here = boot_id() and boot_id() in beat.split()
        if is_here and holder(self._dir / worker) is None:
            return True
        seen = self._seen.get(worker)
        if seen is None or seen.beat != beat:
            self._seen[worker] = _Seen(beat, now)
            return False
        silent = now - seen.since
        if silent > LEASE_SECONDS:
            return True
        return silent > FREE_LOCK_BEATS * BEAT_SECONDS and holder(self._dir / worker) is None

    def _beat(self, worker: str) -> bytes:
        try:
            return (self._dir / worker / BEAT).read_bytes()[:_LONGEST]
        except OSError:
            return b""


class Claims:
    """Makes this worker's claims, and reads those of all workers."""

    def __init__(self, job_dir: Path, worker: str, num_chunks: int, workers: Workers) -> None:
        self._dir, self._worker, self._num_chunks = job_dir / CLAIMS, worker, num_chunks
        self._workers = workers
        self._first_folder = 0  # in folders before this one every chunk is claimed
        self._first_open = 0  # in folders before this one every chunk is done
        make_directory(self._dir)

    def take(self) -> int | None:
        """Claim the next chunk that no worker has; None if there is none."""
        for folder in range(self._first_folder, self._num_folders):
            names = self._names(folder)
            for number in self._numbers(folder):
                if f"{number % IN_FOLDER:03}.0" not in names and self._claim(number, 0):
                    return number
            self._first_folder = folder + 1
        return None

    def take_over(self) -> tuple[int, list[str]] | None:
        """Claim a chunk whose worker is dead: its number, and who had it before."""
        for number, suffix in self._unfinished():
            owners = [self._owner(number, i) for i in range(suffix + 1)]
            if owners[-1] == self._worker or not self._workers.is_dead(owners[-1]):
                continue
            if self._claim(number, suffix + 1):
                return number, owners
        return None

    def _unfinished(self) -> Iterator[tuple[int, int]]:
        """Chunks that are claimed and not done, each with the number of its latest claim."""
        for folder in range(self._first_open, self._num_folders):
            names, all_done = self._names(folder), True
            for number in self._numbers(folder):
                stem = f"{number % IN_FOLDER:03}"
                if stem + _DONE in names:
                    continue
                all_done = False
                suffix = -1
                while f"{stem}.{suffix + 1}" in names:
                    suffix += 1
                if suffix >= 0:
                    yield number, suffix
            if all_done and folder == self._first_open:
                self._first_open = folder + 1

    def finish(self, number: int, num_rows: int) -> None:
        """Mark the chunk as done: every row has a record on disk, and `num_rows` are selected."""
        self._write(self._path(number, "done"), b"%d\n" % num_rows)

    def counts(self) -> dict[int, int]:
        """For each chunk that is done, how many of its rows are selected."""
        done = sorted({*range(self._num_chunks)} - {*self.open_numbers()})
        return {number: _number_in(self._path(number, "done")) for number in done}

    @property
    def all_done(self) -> bool:
        return next(self.open_numbers(), None) is None

    def open_numbers(self) -> Iterator[int]:
        """Chunks that are not done."""
        for folder in range(self._first_open, self._num_folders):
            names = self._names(folder)
            yield from (
                n for n in self._numbers(folder) if f"{n % IN_FOLDER:03}{_DONE}" not in names
            )

    @property
    def _num_folders(self) -> int:
        return -(-self._num_chunks // IN_FOLDER)

    def _numbers(self, folder: int) -> range:
        return range(folder * IN_FOLDER, min((folder + 1) * IN_FOLDER, self._num_chunks))

    def _names(self, folder: int) -> set[str]:
        try:
            return set(os.listdir(self._dir / f"{folder:06}"))
        except FileNotFoundError:
            return set()

    def _path(self, number: int, suffix: int | str) -> Path:
        return self._dir / f"{number // IN_FOLDER:06}" / f"{number % IN_FOLDER:03}.{suffix}"

    def _claim(self, number: int, suffix: int) -> bool:
        return self._write(self._path(number, suffix), self._worker.encode() + b"\n")

    def _write(self, path: Path, data: bytes) -> bool:
        """Make a file with this content; False if it exists. It is written under another name and
        then linked, so that no other worker sees a claim without its owner's name."""
        make_directory(path.parent)
        aside = path.with_name(f".{path.name}.{self._worker}")
        with open(aside, "wb") as file:
            file.write(data)
            file.flush()
            sync(file.fileno())  # or a power cut leaves the name of an empty file
        try:
            os.link(aside, path)
        except FileExistsError:
            # NFS also reports this if it made the link and its first reply was lost.
            return aside.stat().st_nlink == 2
        finally:
            aside.unlink(missing_ok=True)
        return True

    def _owner(self, number: int, suffix: int) -> str:
        name = self._path(number, suffix).read_bytes()[:_LONGEST].decode(errors="replace").strip()
        if not name or Path(name).name != name or name.startswith("."):
            raise CorruptJob(f"{self._path(number, suffix)} names no worker")
        return name


def _number_in(path: Path) -> int:
    text = path.read_bytes()[:_LONGEST].strip()
    if not text.isdigit():
        raise CorruptJob(f"{path} holds no number of rows")
    return int(text)
