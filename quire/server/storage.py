"""The server's folder: bytes of files, parts that are still arriving, job directories of batches.

    data/
        server.sqlite      the database of files and batches
        lock               one server at a time
        incoming/          uploads that are still arriving; emptied at each start
        files/ab/abcd...   bytes of a file, under a random name that no client knows
        batches/abcd...    a job directory per batch

For every name in the database the bytes exist: they are synced and renamed before the row is
written, and removed after the row was deleted. Files without a row, which a kill may leave, are
removed at the next start.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from quire.base.system import sync
from quire.jobs.store.durable import make_directory, replacing, sync_directory
from quire.jobs.store.lock import JobLock

_NAME = re.compile("[0-9a-f]{32}")
_GOING = ".going"  # ending of names that are being removed
_NO_SECOND_NAMES = (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS)
KEPT_FREE = 64 << 20  # bytes of the disk that uploads leave free for journals and the database


class Storage:
    """Holds the folder's lock until `close`; JobLocked if another server has it."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        make_directory(self.root)
        self._lock = JobLock.take(self.root, "start this server with another --data")
        self._incoming, self._files = self.root / "incoming", self.root / "files"
        self._batches = self.root / "batches"
        for folder in (self._incoming, self._files, self._batches):
            make_directory(folder)
        self.database = self.root / "server.sqlite"

    def close(self) -> None:
        self._lock.release()

    def new_name(self) -> str:
        return secrets.token_hex(16)

    def file(self, name: str) -> Path:
        return self._files / _checked(name)[:2] / name

    def batch(self, name: str) -> Path:
        return self._batches / _checked(name)

    def free_bytes(self) -> int:
        """Bytes of the disk that uploads may still use."""
        return shutil.disk_usage(self.root).free - KEPT_FREE

    @contextmanager
    def receiving(self, name: str) -> Iterator[int]:
        """A descriptor of a new file for arriving bytes. The file is removed when the block ends,
        unless `keep` was called."""
        path = self._arriving(name)
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            yield number
        finally:
            os.close(number)
            path.unlink(missing_ok=True)

    def temporary(self) -> Path:
        """A name for a temporary file; if it is left over, the next start removes it."""
        return self._incoming / self.new_name()

    def keep(self, name: str, number: int) -> None:
        """Make a received file durable, bytes and name."""
        sync(number)
        path = self.file(name)
        make_directory(path.parent)
        os.replace(self._arriving(name), path)
        for folder in (path.parent, self._incoming):  # the rename changed both folders
            sync_directory(folder)

    def link(self, source: Path, name: str) -> None:
        """Give a durable file a second name in `files/`."""
        path = self.file(name)
        make_directory(path.parent)
        second_name(source, path)

    def remove_file(self, name: str) -> None:
        """Remove the bytes of a file whose row was deleted."""
        self.file(name).unlink(missing_ok=True)

    def remove_batch(self, name: str) -> None:
        """Remove a job directory; it is renamed first, so that half of one is never found."""
        path = self.batch(name)
        going = path.with_name(path.name + _GOING)
        with suppress(FileNotFoundError):
            os.rename(path, going)
        shutil.rmtree(going, ignore_errors=True)

    def sweep(self, files: Collection[str], batches: Collection[str]) -> None:
        """Remove everything without a row; only at the start, when nothing is arriving."""
        for path in self._incoming.iterdir():
            path.unlink(missing_ok=True)
        for folder in self._files.iterdir():
            for path in folder.iterdir():
                if path.name not in files:
                    path.unlink(missing_ok=True)
        for path in self._batches.iterdir():
            if path.name not in batches:
                shutil.rmtree(path, ignore_errors=True)

    def _arriving(self, name: str) -> Path:
        return self._incoming / _checked(name)


def second_name(source: Path, target: Path) -> None:
    """Give a durable file a second name, which is durable when this returns. On a file system
    without hard links it is a copy; if the name exists already, it stays as it is."""
    try:
        os.link(source, target)
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno not in _NO_SECOND_NAMES:
            raise
        with open(source, "rb") as file, replacing(target) as copy:
            shutil.copyfileobj(file, copy, 1 << 20)
    sync_directory(target.parent)


def _checked(name: str) -> str:
    """Check the form of a name again, although all names come from our own database."""
    if not _NAME.fullmatch(name):
        raise ValueError("not a name that this server gave")
    return name
