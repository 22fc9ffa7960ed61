"""Reads files that another program may have written: bounded in size, and never waiting for a pipe
that does not end."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from quire.errors import CorruptJob


def read_bounded(path: Path, most: int) -> bytes:
    """The whole file; CorruptJob if it has more than `most` bytes, or is no regular file."""
    with open(open_regular(path), "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise CorruptJob(f"{path} has over {most:,} bytes, more than such a file ever has")
    return data


def bounded_lines(path: Path, longest: int) -> Iterator[bytes]:
    """The lines of a file; those with more than `longest` bytes are left out."""
    with open(open_regular(path), "rb") as file:
        is_rest = False  # of a line that is too long
        while line := file.readline(longest + 1):
            is_cut = len(line) > longest and not line.endswith(b"\n")
            if not is_rest and not is_cut:
                yield line
            is_rest = is_cut


def open_regular(path: Path) -> int:
    """The descriptor of a regular file; CorruptJob for anything else, such as a pipe."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise CorruptJob(f"{path} is a link that leads nowhere; it is not read") from None
    if stat.S_ISREG(os.fstat(number).st_mode):
        return number
    os.close(number)
    raise CorruptJob(f"{path} is no regular file; it is not read")
