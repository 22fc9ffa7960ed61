"""Rows that exist only once, from stdin or from a Python program, kept in the job directory.

What is spooled is an input file like any other afterwards, so that the job can go on without
whoever piped it in.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

from quire.base.sha256 import sha256_of
from quire.errors import InvalidOption, JobChanged
from quire.jobs.input.arrow import BATCH_ROWS
from quire.jobs.input.plain import askable
from quire.jobs.input.rows import BadRow
from quire.jobs.store.durable import replacing

STEM = "input"


def spool_stream(stream: IO[bytes], job_dir: Path, format: str, *, keep: bool = False) -> Path:
    """Copy all of `stream` into the job directory. A stream with nothing in it leaves what was
    spooled before: the same command, run again without its pipe, continues. With `keep` there are
    answers to that, and other rows are refused."""
    path = job_dir / f"{STEM}.{format}"
    first = stream.read(1 << 16)
    if not first.strip() and path.exists():
        return path
    with _spooling(path, keep) as file:
        file.write(first)
        shutil.copyfileobj(stream, file, 1 << 20)
    return path


def spool_rows(rows: Iterable[Mapping[str, Any]], job_dir: Path, *, keep: bool = False) -> Path:
    """Write the rows of a program as JSON lines, or as Arrow what can be read as such: tables of
    pyarrow, polars, pandas, datasets."""
    if hasattr(rows, "__arrow_c_stream__"):
        return _spool_table(rows, job_dir, keep)
    path = job_dir / f"{STEM}.jsonl"
    with _spooling(path, keep) as file:
        for number, row in enumerate(rows):
            file.write(_line(row, number))
    return path


class _Unchanged(Exception):
    """The same bytes were spooled before."""


@contextmanager
def _spooling(path: Path, keep: bool) -> Iterator[BinaryIO]:
    """A file to write. It takes the place of what was spooled before if it is another one, and then
    JobChanged where that is to be kept: the job's answers would be left without their rows."""
    with suppress(_Unchanged), replacing(path) as file:
        yield file
        file.flush()
        if path.exists() and sha256_of(path) == sha256_of(Path(file.name)):
            raise _Unchanged
        if path.exists() and keep:
            raise JobChanged(
                f"the rows given now are not those that the job in {path.parent} has answers to. "
                "Pass --reuse to keep the rows whose content is unchanged, --overwrite to begin "
                "again, or give another OUTPUT."
            )


def _spool_table(table: Any, job_dir: Path, keep: bool) -> Path:
    import pyarrow as pa

    path = job_dir / f"{STEM}.arrow"
    with _spooling(path, keep) as file:
        reader = pa.RecordBatchReader.from_stream(table)
        with pa.ipc.new_stream(file, reader.schema) as writer:
            for batch in reader:
                # In pieces: whoever reads it later holds one of them at a time.
                for start in range(0, batch.num_rows, BATCH_ROWS):
                    writer.write_batch(batch.slice(start, BATCH_ROWS))
    return path


def _line(row: Any, number: int) -> bytes:
    if not isinstance(row, Mapping):
        raise InvalidOption(
            f"row {number} of the input is a {type(row).__name__}; rows are dicts of columns",
            parameter="input",
            value=row,
        )
    try:
        return json.dumps(askable(row)).encode() + b"\n"
    except (BadRow, TypeError, ValueError, RecursionError) as error:
        raise InvalidOption(
            f"row {number} of the input does not go into JSON: {error}. Save the table as Parquet "
            "and give its path.",
            parameter="input",
        ) from None
