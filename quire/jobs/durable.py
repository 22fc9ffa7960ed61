"""Files that are there after a power cut: written aside, synced, renamed, the directory synced.

A file whose directory was not synced may be gone however often the file itself was.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def sync_directory(directory: Path) -> None:
    """Make what was created, renamed or removed in `directory` durable."""
    number = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def make_directory(path: Path) -> None:
    """Make `path` and what is missing above it, for good. If it is there already, whoever made it
    may have been killed before it was."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for each in missing or [path]:
        sync_directory(each.parent)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write; it takes the name `path`, whole and durable, when the block ends well.

    If the block fails, `path` is as it was. One writer at a time: the name beside it is fixed,
    so that what a kill leaves behind is overwritten and not piled up.
    """
    aside = path.with_name(path.name + ".partial")
    try:
        with open(aside, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def write_file(path: Path, data: bytes) -> None:
    """Replace the file by `data`, or leave it as it was."""
    with replacing(path) as file:
        file.write(data)
