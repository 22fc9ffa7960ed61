"""Parquet and Arrow files, by batches of records; pyarrow is imported when one is opened.

Files are read and never memory-mapped: if a file is truncated while it is read, that is a read
error, where a mapped file would kill the process.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.errors import InvalidOption
from quire.jobs.input.jsonl import Values
from quire.jobs.input.rows import BadRow, repeated

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Schema

BATCH_ROWS, BATCH_BYTES = 1024, 16 << 20
_ARROW_FILE, _PARQUET = b"ARROW1", b"PAR1"


def read_arrow(path: Path, wanted: Callable[[int], bool]) -> Iterator[Values | BadRow | None]:
    """The rows of the file as Python values; None for those that are not wanted."""
    from quire.jobs.input.arrow_values import values_of

    first = 0
    for batch in read_batches(path):
        picked = [i for i in range(batch.num_rows) if wanted(first + i)]
        first += batch.num_rows
        values = iter(values_of(batch, picked))
        here = set(picked)
        for i in range(batch.num_rows):
            yield next(values) if i in here else None


def read_batches(path: Path) -> Iterator[RecordBatch]:
    """The file's batches, of at most BATCH_ROWS rows."""
    with _opened(path) as file:
        batches = iter(file.batches())
        while True:
            try:
                batch = next(batches, None)
            except Exception as error:  # pyarrow raises any kind of error for a damaged file
                raise _damaged(path, error) from None
            if batch is None:
                return
            yield from _cut(batch)


def _cut(batch: RecordBatch) -> Iterator[RecordBatch]:
    size = max(1, batch.get_total_buffer_size())
    step = max(1, min(BATCH_ROWS, batch.num_rows * BATCH_BYTES // size))
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)


def count_rows(path: Path) -> int:
    with _opened(path) as file:
        try:
            return file.count_rows()
        except Exception as error:  # as above
            raise _damaged(path, error) from None


def read_schema(path: Path) -> Schema:
    with _opened(path) as file:
        return file.schema


class _Parquet:
    def __init__(self, path: Path) -> None:
        from pyarrow import parquet

        self._file = parquet.ParquetFile(path)
        self.schema: Schema = self._file.schema_arrow

    def batches(self) -> Iterator[RecordBatch]:
        return self._file.iter_batches(batch_size=BATCH_ROWS)  # type: ignore[no-any-return]

    def count_rows(self) -> int:
        return int(self._file.metadata.num_rows)

    def close(self) -> None:
        self._file.close()


class _Ipc:
    """Arrow's own formats: a file with an index of its batches, or a stream of batches."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        from pyarrow import ipc

        self._is_file = _begins(path, _ARROW_FILE)
        self._source = pa.OSFile(str(path))
        self._reader: Any = (ipc.open_file if self._is_file else ipc.open_stream)(self._source)
        self.schema: Schema = self._reader.schema

    def batches(self) -> Iterator[RecordBatch]:
        if not self._is_file:
            return iter(self._reader)
        return (self._reader.get_batch(i) for i in range(self._reader.num_record_batches))

    def count_rows(self) -> int:
        if self._is_file:
            return int(self._reader.count_rows())
        return sum(batch.num_rows for batch in self._reader)

    def close(self) -> None:
        self._source.close()


@contextmanager
def _opened(path: Path) -> Iterator[_Parquet | _Ipc]:
    """The file, opened. Two columns of one name are refused: one would hide the other."""
    try:
        is_parquet = path.suffix.lower() in (".parquet", ".pq") or _begins(path, _PARQUET)
        file = _Parquet(path) if is_parquet else _Ipc(path)
        names = list(file.schema.names)
    except FileNotFoundError:
        raise
    except Exception as error:  # as above
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise _not_arrow(path, error) from None
    try:
        if twice := repeated(names):
            raise InvalidOption(
                f"{path} names {twice} twice; every column needs a name of its own. Rename one.",
                parameter="input",
                value=str(path),
            )
        yield file
    finally:
        file.close()


def _begins(path: Path, sign: bytes) -> bool:
    with open(path, "rb") as file:
        return file.read(len(sign)) == sign


def _damaged(path: Path, error: Exception) -> OSError:
    if isinstance(error, OSError) and error.errno is not None:
        return error
    return OSError(
        errno.EIO, f"it is damaged, or was cut while it was read ({_reason(error)})", str(path)
    )


def _not_arrow(path: Path, error: Exception) -> InvalidOption:
    return InvalidOption(
        f"{path} does not read as {path.suffix or 'Arrow'}: {_reason(error)}. Name its format with "
        "--format if the ending is wrong.",
        parameter="input",
        value=str(path),
    )


def _reason(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__
