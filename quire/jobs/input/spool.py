"""Rows that exist only once, from stdin or from a Python program, kept in the job directory.

What is spooled is an input file like any other afterwards, so that the job can go on without
whoever piped it in.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from quire.errors import InvalidOption
from quire.jobs.input.arrow import BATCH_ROWS
from quire.jobs.input.plain import askable
from quire.jobs.input.rows import BadRow
from quire.jobs.store.durable import replacing

STEM = "input"


def spool_stream(stream: IO[bytes], job_dir: Path, format: str) -> Path:
    """Copy all of `stream` into the job directory. A stream with nothing in it leaves what was
    spooled before: the same command, run again without its pipe, continues."""
    path = job_dir / f"{STEM}.{format}"
    first = stream.read(1 << 16)
    if not first.strip() and path.exists():
        return path
    with replacing(path) as file:
        file.write(first)
        shutil.copyfileobj(stream, file, 1 << 20)
    return path


def spool_rows(rows: Iterable[Mapping[str, Any]], job_dir: Path) -> Path:
    """Write the rows of a program as JSON lines, or as Arrow what can be read as such: tables of
    pyarrow, polars, pandas, datasets."""
    if hasattr(rows, "__arrow_c_stream__"):
        return _spool_table(rows, job_dir)
    path = job_dir / f"{STEM}.jsonl"
    with replacing(path) as file:
        for number, row in enumerate(rows):
            file.write(_line(row, number))
    return path


def _spool_table(table: Any, job_dir: Path) -> Path:
    import pyarrow as pa

    path = job_dir / f"{STEM}.arrow"
    with replacing(path) as file:
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
