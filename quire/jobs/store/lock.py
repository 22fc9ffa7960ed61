"""One writer per job: a lock that the kernel frees when its holder dies, and a growing epoch.

Every record has the epoch of its writer, which tells it from older records. Before each commit a
writer checks that the lock file is still its own.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

from quire.base.system import sync
from quire.errors import JobLocked
from quire.jobs.store.durable import is_at, naming, open_own

NAME = "lock"
_MOST = 1 << 40  # epochs


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds, or last held, a job."""

    host: str
    pid: int
    epoch: int


class JobLock:
    """Held from `take` until `release`, or until the process ends."""

    def __init__(self, job_dir: Path, number: int, epoch: int) -> None:
        self.job_dir, self.epoch = job_dir, epoch
        self._path, self._number = job_dir / NAME, number

    @classmethod
    def take(cls, job_dir: Path, instead: str = "give another OUTPUT") -> JobLock:
        """Become the writer, in a new epoch; JobLocked, with `instead` as the way out, if another
        process is."""
        path = job_dir / NAME
        while True:
            number = open_own(path, os.O_RDWR)
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if is_at(number, path):
                    with naming(path):
                        return cls(job_dir, number, _next_epoch(number))
                os.close(number)  # another process removed and made the file anew meanwhile
            except BlockingIOError:
                held = _read(number)
                os.close(number)
                raise JobLocked(f"{_described(job_dir, held)}, or {instead}.") from None
            except BaseException:
                os.close(number)
                raise

    def raise_to(self, epoch: int) -> None:
        """Raise the epoch to this one at least. A power cut may have emptied the lock file, and an
        epoch that has records must never be used again."""
        self.epoch = max(self.epoch, epoch)

    def check(self) -> None:
        """Raise JobLocked if the lock file was removed or replaced."""
        if not is_at(self._number, self._path):
            raise JobLocked(
                f"{self._path} was removed while this job ran, so another writer may have begun. "
                "Nothing more is written; run the same command to continue."
            )

    def __enter__(self) -> JobLock:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def release(self) -> None:
        if self._number >= 0:
            os.close(self._number)
            self._number = -1


def _next_epoch(number: int) -> int:
    """Write this process into the lock file, with a new epoch."""
    before = _read(number)
    epoch = 1 + (before.epoch if before else 0)
    mine = Holder(socket.gethostname(), os.getpid(), epoch)
    # Padded, so that a shorter text never leaves the end of a longer one behind it.
    os.pwrite(number, json.dumps(asdict(mine)).ljust(200).encode() + b"\n", 0)
    sync(number)
    return epoch


def holder(job_dir: Path) -> Holder | None:
    """The process that writes the job now; None if there is none."""
    try:
        # Without waiting for the other end of a pipe that was left here.
        number = os.open(job_dir / NAME, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read(number) or Holder("unknown", 0, 0)
    finally:
        os.close(number)
    return None


def _read(number: int) -> Holder | None:
    """The holder in the lock file; None if the file is new, or was cut while it was written."""
    try:
        found = json.loads(os.pread(number, 4096, 0))
        epoch = int(found["epoch"])
        # No number of runs reaches _MOST, so such an epoch was not written by quire.
        return Holder(str(found["host"]), int(found["pid"]), epoch if 0 <= epoch < _MOST else 0)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _described(job_dir: Path, held: Holder | None) -> str:
    who = f"process {held.pid} on {held.host}" if held else "another process"
    return f"{who} is writing {job_dir}. Wait for it or stop it"
