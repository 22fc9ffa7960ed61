"""What a disk says of an open file has no name in it: the message that a user reads has."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quire.jobs.store.durable import naming, replacing
from quire.jobs.store.lock import JobLock


@contextmanager
def no_room() -> Iterator[None]:
    """No file of this process may have a byte."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [1, 100_000])  # found when it is flushed, and before
def test_a_file_that_cannot_be_written_is_named_and_left_as_it_was(
    size: int, tmp_path: Path
) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(b"before")
    with pytest.raises(OSError, match="large") as caught, no_room(), replacing(path) as file:
        file.write(b"x" * size)
    assert caught.value.errno == errno.EFBIG
    assert caught.value.filename == f"{path}.partial"
    assert [p.name for p in tmp_path.iterdir()] == ["out.jsonl"] and path.read_bytes() == b"before"


def test_a_lock_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="large") as caught, no_room():
        JobLock.take(tmp_path)
    assert Path(str(caught.value.filename)).parent == tmp_path


def test_an_error_that_names_its_file_keeps_the_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught, naming(tmp_path / "other"):
        os.open(tmp_path / "missing", os.O_RDONLY)
    assert str(caught.value.filename) == str(tmp_path / "missing")
