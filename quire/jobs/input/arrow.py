"""Parquet and Arrow files, by batches of records; pyarrow is imported when one is opened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.errors import InvalidOption

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Schema

BATCH_ROWS = 1024
_ARROW_FILE = b"ARROW1"


def read_arrow(path: Path, wanted: Callable[[int], bool]) -> Iterator[dict[str, Any] | None]:
    """The rows of the file as Python values; None for those that are not wanted."""
    first = 0
    for batch in read_batches(path):
        picked = [i for i in range(batch.num_rows) if wanted(first + i)]
        first += batch.num_rows
        values = iter(_values(batch, picked))
        here = set(picked)
        for i in range(batch.num_rows):
            yield next(values) if i in here else None


def _values(batch: RecordBatch, picked: list[int]) -> list[Any]:
    if not picked:
        return []
    try:
        rows = batch if len(picked) == batch.num_rows else batch.take(picked)
        found: list[Any] = rows.to_pylist()
        return found
    except (ValueError, ArithmeticError):
        return [_single(batch, i) for i in picked]


def _single(batch: RecordBatch, i: int) -> dict[str, Any]:
    """One row; a value that Python has no type for (a nanosecond, say) becomes text."""
    return {name: _value(batch.column(name)[i]) for name in batch.schema.names}


def _value(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except (ValueError, ArithmeticError):
        return str(scalar.cast("string"))


def read_batches(path: Path) -> Iterator[RecordBatch]:
    """The file's batches, of at most BATCH_ROWS rows."""
    import pyarrow as pa
    from pyarrow import ipc, parquet

    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            with parquet.ParquetFile(path) as file:
                yield from file.iter_batches(batch_size=BATCH_ROWS)
            return
        with pa.memory_map(str(path)) as source:
            yield from _cut(ipc.open_file(source) if _is_file(path) else ipc.open_stream(source))
    except pa.ArrowInvalid as error:
        raise _not_arrow(path, error) from None


def _cut(reader: Any) -> Iterator[RecordBatch]:
    count = getattr(reader, "num_record_batches", None)
    batches = reader if count is None else (reader.get_batch(i) for i in range(count))
    for batch in batches:
        for start in range(0, batch.num_rows, BATCH_ROWS):
            yield batch.slice(start, BATCH_ROWS)


def count_rows(path: Path) -> int:
    if path.suffix.lower() in (".parquet", ".pq"):
        from pyarrow import parquet

        return int(parquet.read_metadata(path).num_rows)
    return sum(batch.num_rows for batch in read_batches(path))


def read_schema(path: Path) -> Schema:
    import pyarrow as pa
    from pyarrow import ipc, parquet

    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            return parquet.read_schema(path)
        with pa.memory_map(str(path)) as source:
            return (ipc.open_file(source) if _is_file(path) else ipc.open_stream(source)).schema
    except pa.ArrowInvalid as error:
        raise _not_arrow(path, error) from None


def _is_file(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(len(_ARROW_FILE)) == _ARROW_FILE


def _not_arrow(path: Path, error: Exception) -> InvalidOption:
    reason = str(error).rstrip(".")
    return InvalidOption(
        f"{path} does not read as {path.suffix or 'Arrow'}: {reason}. Name its format with "
        "--format if the ending is wrong.",
        parameter="input",
        value=str(path),
    )
