"""Writes files that survive a power cut: each is written under another name, synced and renamed,
and then its directory is synced. Without the last step the file's name may be lost.

It also opens files safely: a file that is written to was made here, or is a plain file with one
name, and never a link to another file.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from quire.base.system import reserve, sync
from quire.errors import CorruptJob

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_OWNER_ALONE, _AS_UMASK_SAYS = 0o600, 0o666
# The errors for a link that must not be followed, and for something that is no file.
_NO_FILE = {errno.ELOOP: "a link", errno.EMLINK: "a link", errno.EISDIR: "a folder"}
PARTIAL = ".partial"


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Add the file's name to an OSError: for an open file the system does not give it."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


class _NamedFile(io.FileIO):
    """A file whose errors say its name."""

    def write(self, data: ReadableBuffer, /) -> int:
        with naming(str(self.name)):
            return super().write(data)


def sync_directory(directory: Path) -> None:
    """Make what was created, renamed or removed in `directory` durable."""
    number = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with naming(directory):
            sync(number)
    finally:
        os.close(number)


def make_directory(path: Path) -> None:
    """Make `path`, for its owner alone, with missing folders above it, and sync all of them. Also
    an existing one is synced: the process that made it may have been killed before its sync."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    for each in missing or [path]:
        sync_directory(each.parent)


def open_own(path: str | Path, flags: int) -> int:
    """Open a file of a job to write in it; made where it is missing, for its owner alone.

    CorruptJob if it is a link or a folder: results must not be written into the target of a link.
    """
    try:
        number = os.open(
            path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, _OWNER_ALONE
        )
    except OSError as error:
        if error.errno in _NO_FILE:
            raise _not_its_own(path, _NO_FILE[error.errno]) from None
        raise
    found = os.fstat(number)
    if stat.S_ISREG(found.st_mode) and found.st_nlink <= 1:
        return number
    os.close(number)
    what = "a hard link" if stat.S_ISREG(found.st_mode) else "no regular file"
    raise _not_its_own(path, what)


def _not_its_own(path: str | Path, what: str) -> CorruptJob:
    return CorruptJob(
        f"{path} is {what}; a job writes only into plain files of its own. Remove it or put a copy "
        "in its place, or give another OUTPUT."
    )


@contextmanager
def replacing(path: Path, *, shared: bool = False) -> Iterator[BinaryIO]:
    """A file to write; it gets the name `path`, complete and durable, if the block succeeds.

    If the block fails, `path` is unchanged. The temporary name is always the same, so that a file
    that a kill left is replaced and they do not pile up; a second writer is refused. Only its owner
    may read the file; with `shared` the umask decides, for a file that the user named.
    """
    aside = path.with_name(path.name + PARTIAL)
    mode = _AS_UMASK_SAYS if shared else _OWNER_ALONE
    raw = _NamedFile(aside, "wb", opener=lambda name, flags: _new_file(name, flags, mode))
    with io.BufferedWriter(raw) as file:
        try:
            yield file
            file.flush()
            with naming(aside):
                sync(file.fileno())
            if not is_at(file.fileno(), aside):
                raise FileNotFoundError(errno.ENOENT, "taken away while it was written", str(aside))
            os.replace(aside, path)
        except BaseException:
            if is_at(file.fileno(), aside):
                aside.unlink()
            raise
    sync_directory(path.parent)


def _new_file(name: str, flags: int, mode: int) -> int:
    """A new file. An old one of this name is removed, unless another process is writing it."""
    flags = flags & ~os.O_TRUNC | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        number = os.open(name, flags, mode)
    except FileExistsError:
        _refuse_if_written(name)
        if stat.S_ISDIR(os.lstat(name).st_mode):
            raise _not_its_own(name, "a folder") from None
        os.unlink(name)
        number = os.open(name, flags, mode)
    with suppress(OSError):  # a file system without locks cannot show a second writer
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return number


def _refuse_if_written(name: str) -> None:
    try:
        number = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # a link, or a file that we may not read: not one of our writers
        return
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if isinstance(error, BlockingIOError):
            described = "another process is writing it"
            raise BlockingIOError(errno.EWOULDBLOCK, described, name) from None
    finally:
        os.close(number)


def is_at(number: int, path: Path) -> bool:
    """Whether the open file is the one that has this name now."""
    try:
        return os.path.samestat(os.fstat(number), os.lstat(path))
    except FileNotFoundError:
        return False


def write_file(path: Path, data: bytes, *, shared: bool = False) -> None:
    """Replace the file by `data`, or leave it as it was."""
    with replacing(path, shared=shared) as file:
        file.write(data)


def keep_room(path: Path, size: int) -> None:
    """Make a file of so many bytes, to be deleted when the disk is full; none if it is full now."""
    try:
        with open(open_own(path, os.O_WRONLY), "wb") as file:
            reserve(file.fileno(), size)
    except OSError:
        path.unlink(missing_ok=True)
