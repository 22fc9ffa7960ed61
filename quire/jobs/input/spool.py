"""Rows that exist only once, from stdin or from a Python program, kept in the job directory.

What is spooled is an input file like any other afterwards, so that the job can go on without the
program that piped it in.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

from quire.base.sha256 import sha256_of
from quire.errors import InvalidOption, JobChanged
from quire.jobs.input.arrow import BATCH_ROWS
from quire.jobs.input.packed import check_text
from quire.jobs.input.plain import askable
from quire.jobs.input.rows import BadRow
from quire.jobs.store.durable import replacing

STEM = "input"
NAME = rf"{STEM}(-2)?\.\w+"  # a pattern: the rows of the job on disk, and those that replace them


@dataclass(frozen=True, slots=True)
class Spool:
    """Writes such rows to files. `known` are the files of the job on disk; they stay until a
    manifest names others. With `keep` the job has answers to them, so other rows are refused."""

    job_dir: Path
    known: Path | None = None
    keep: bool = False

    def stream(self, stream: IO[bytes], format: str) -> Path:
        """Copy all of `stream`. One with nothing in it leaves what was spooled before: the same
        command, run again without its pipe, continues."""
        first = stream.read(1 << 16)
        if not first.strip() and self.known is not None:
            return self.known
        if format not in ("arrow", "parquet"):
            check_text(first, "stdin")  # checked here, so that an error names stdin
        with self._spooling(format) as (file, path):
            file.write(first)
            shutil.copyfileobj(stream, file, 1 << 20)
        return path if path.exists() else self.known or path

    def rows(self, rows: Iterable[Mapping[str, Any]]) -> Path:
        """Write the rows of a program as JSON lines, or as Arrow what can be read as such: tables
        of pyarrow, polars, pandas, datasets."""
        is_table = hasattr(rows, "__arrow_c_stream__")
        with self._spooling("arrow" if is_table else "jsonl") as (file, path):
            if is_table:
                _write_table(rows, file)
            else:
                file.writelines(_line(row, number) for number, row in enumerate(rows))
        return path if path.exists() else self.known or path

    @contextmanager
    def _spooling(self, format: str) -> Iterator[tuple[BinaryIO, Path]]:
        """A file to write, under a name that the job on disk does not use. It is dropped if the job
        has the same bytes already; JobChanged if it has others that are to be kept."""
        known = self.known
        name = f"{STEM}.{format}"
        is_taken = known is not None and known.name == name
        path = self.job_dir / (f"{STEM}-2.{format}" if is_taken else name)
        path.unlink(missing_ok=True)  # of a run that was killed
        with suppress(_Unchanged), replacing(path) as file:
            yield file, path
            file.flush()
            if known is not None and sha256_of(known) == sha256_of(Path(file.name)):
                raise _Unchanged
            if known is not None and self.keep:
                raise JobChanged(
                    f"the rows given now are not those that the job in {self.job_dir} has answers "
                    "to. Pass --reuse to keep the rows whose content is unchanged, --overwrite to "
                    "begin again, or give another OUTPUT."
                )


class _Unchanged(Exception):
    """The same bytes were spooled before."""


def _write_table(table: Any, file: BinaryIO) -> None:
    import pyarrow as pa

    reader = pa.RecordBatchReader.from_stream(table)
    with pa.ipc.new_stream(file, reader.schema) as writer:
        for batch in reader:
            # In pieces: a reader holds one of them at a time.
            for start in range(0, batch.num_rows, BATCH_ROWS):
                writer.write_batch(batch.slice(start, BATCH_ROWS))


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
