"""The job's table in Arrow. The columns of an Arrow input stay as they are, bit for bit; for other
inputs a first pass finds the types.

A column of several types, or of a type that Parquet cannot hold (unions, objects without fields),
becomes JSON text. So the table can be written whatever the rows hold.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from quire.jobs.input.arrow import read_batches, read_schema
from quire.jobs.input.arrow_values import is_sound, values_of
from quire.jobs.input.nanoseconds import has_nanosecond
from quire.jobs.input.rows import BadRow
from quire.jobs.output.columns import CHOICE_PROBS, SCORES, TIMINGS, ResultColumns
from quire.jobs.output.joined import job_files, joined
from quire.jobs.output.json_line import json_line
from quire.jobs.store.manifest import Manifest
from quire.jobs.store.segments import RecordReader, ResultIndex

_CHUNK, _CHUNK_SIZE = 1024, 16 << 20
# What pyarrow says of values that have no common type, or one that it does not know.
_MIXED = (pa.ArrowException, OverflowError, TypeError, ValueError)


def batches(
    job_dir: Path, manifest: Manifest, index: ResultIndex
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The schema and the batches of the whole table."""
    files = job_files(job_dir, manifest)
    if files and all(file.is_table for file in files):
        schemas = [read_schema(file.path) for file in files]
        if all(schema.equals(schemas[0]) for schema in schemas):
            kept = pa.schema([_storable(field) for field in schemas[0]], schemas[0].metadata)
            schema = _with_results(kept, manifest)
            return schema, _from_arrow(job_dir, manifest, index, schema)
    types = _Types()
    for chunk in _chunks(joined(job_dir, manifest, index)):
        types.see([values for values, _ in chunk])
    if types.widened:
        # A later row may have changed a column to a type that earlier rows do not fit: try them.
        for chunk in _chunks(joined(job_dir, manifest, index)):
            types.try_again([values for values, _ in chunk])
    schema = _with_results(types.schema(), manifest)
    return schema, _from_values(job_dir, manifest, index, types, schema)


def _storable(field: pa.Field) -> pa.Field:
    """The field, or a text field of that name if Parquet cannot hold its type."""
    return field if _is_storable(field.type) else pa.field(field.name, pa.string())


@lru_cache(maxsize=256)  # a table may have 100,000 columns of one type
def _is_storable(kind: pa.DataType) -> bool:
    """Whether Parquet can hold this type."""
    return _is_written(pa.chunked_array([], kind))


def _is_written(column: pa.Array | pa.ChunkedArray) -> bool:
    """Whether Parquet can hold these values; tried by writing them to memory."""
    try:
        file = io.BytesIO()
        parquet.write_table(pa.table({"column": column}), file)
        parquet.read_schema(file)  # reading allows fewer nested levels than writing
    except (pa.ArrowException, OSError):  # for some types that it cannot write, an OSError
        return False
    return True


def _with_results(schema: pa.Schema, manifest: Manifest) -> pa.Schema:
    columns = ResultColumns(manifest)
    for name in columns.names:
        schema = schema.append(pa.field(name, _type_of(name, manifest, columns.listed)))
    return schema


def _type_of(name: str, manifest: Manifest, listed: bool) -> pa.DataType:
    if name in ("prompt_tokens", "output_tokens"):
        return pa.int64()
    if name in TIMINGS:
        return pa.float64()
    if name in SCORES:
        return pa.list_(
            dict(zip(SCORES, (pa.float64(), pa.bool_(), pa.int64()), strict=True))[name]
        )
    if name == CHOICE_PROBS:
        return pa.map_(pa.string(), pa.float64())
    if name == manifest.output_column and manifest.kind == "embed":
        return pa.list_(pa.float32())
    if name in (manifest.output_column, "finish_reason") and listed:
        return pa.list_(pa.string())
    return pa.string()


def _from_arrow(
    job_dir: Path, manifest: Manifest, index: ResultIndex, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    columns, width = ResultColumns(manifest, binary=True), max(1, len(manifest.settings))
    first = 0
    with RecordReader(job_dir) as reader:
        for file in job_files(job_dir, manifest):
            for batch in read_batches(file.path):
                picked, results = [], []
                for work_row in range(first * width, (first + batch.num_rows) * width):
                    position = index.position(work_row)
                    if position is not None:
                        picked.append(work_row // width - first)
                        results.append(columns.values(reader.read(position)))
                first += batch.num_rows
                if picked:
                    yield _batch(_taken(batch, picked, schema), results, columns, schema)


def _taken(batch: pa.RecordBatch, picked: list[int], schema: pa.Schema) -> list[pa.Array]:
    """These rows of each column, in the types of the table; a damaged value becomes null."""
    taken = []
    for i, (name, column) in enumerate(zip(batch.schema.names, batch.columns, strict=True)):
        kind, alone = schema.field(i).type, pa.RecordBatch.from_arrays([column], names=[name])
        is_kept = column.type.equals(kind)
        if is_kept and is_sound(alone):
            with suppress(pa.ArrowNotImplementedError):  # for some types, such as views
                taken.append(_in_range(column.take(pa.array(picked))))
                continue
        rows = values_of(alone, picked)
        values = [None if isinstance(row, BadRow) else row[name] for row in rows]
        taken.append(_filled(values if is_kept else [_as_json(v) for v in values], kind))
    return taken


def _in_range(column: pa.Array) -> pa.Array:
    """The column, with null for moments that Parquet cannot hold: it counts milliseconds where
    Arrow counts seconds, so its range is smaller."""
    if "[s" not in str(column.type) or _is_written(column):
        return column
    if len(column) == 1:
        return pa.nulls(1, column.type)
    half = len(column) // 2
    return pa.concat_arrays([_in_range(column.slice(0, half)), _in_range(column.slice(half))])


def _filled(values: list[Any], kind: pa.DataType) -> pa.Array:
    """An array of these values, with null for those that the type does not hold."""
    try:
        return _array(values, kind)
    except _MIXED:
        if len(values) == 1:
            return pa.nulls(1, kind)
        return pa.concat_arrays([_filled([value], kind) for value in values])


def _from_values(
    job_dir: Path, manifest: Manifest, index: ResultIndex, types: _Types, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    columns = ResultColumns(manifest, binary=True)
    for chunk in _chunks(joined(job_dir, manifest, index)):
        inputs = types.arrays([values for values, _ in chunk])
        results = [columns.values(record) for _, record in chunk]
        yield _batch(inputs, results, columns, schema)


def _batch(
    inputs: list[pa.Array],
    results: list[dict[str, Any]],
    columns: ResultColumns,
    schema: pa.Schema,
) -> pa.RecordBatch:
    arrays = list(inputs)
    for name in columns.names:
        values = [result[name] for result in results]
        if name == CHOICE_PROBS:  # pairs: older versions of Arrow make no map of a dict
            values = [None if probs is None else list(probs.items()) for probs in values]
        arrays.append(_array(values, schema.field(name).type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _chunks(
    rows: Iterator[tuple[Mapping[str, Any], Any]],
) -> Iterator[list[tuple[Mapping[str, Any], Any]]]:
    """Rows in lists that are bounded in number and, roughly, in size."""
    chunk, size = [], 0
    for values, record in rows:
        chunk.append((values, record))
        size += sum(len(value) for value in values.values() if isinstance(value, str | bytes))
        size += sum(map(len, record.outputs))
        if len(chunk) == _CHUNK or size > _CHUNK_SIZE:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


class _Types:
    """The type of each column over all rows; None for a column that becomes JSON text."""

    def __init__(self) -> None:
        self._found: dict[str, pa.DataType | None] = {}
        self.widened: set[str] = set()  # columns whose type was changed by later rows

    def see(self, rows: list[Mapping[str, Any]]) -> None:
        for name in dict.fromkeys(name for row in rows for name in row):
            known = self._found.get(name, pa.null())
            self._found[name] = both = _common(known, [row.get(name) for row in rows])
            if both is not None and known not in (both, pa.null()):
                self.widened.add(name)

    def try_again(self, rows: list[Mapping[str, Any]]) -> None:
        for name in self.widened:
            try:
                _array([row.get(name) for row in rows], self._found[name])
            except _MIXED:
                self._found[name] = None

    def schema(self) -> pa.Schema:
        for name, kind in self._found.items():
            if kind is not None and not _is_storable(kind):
                self._found[name] = None
        text = (None, pa.null())
        return pa.schema(
            [
                (_encodable_name(name), pa.string() if kind in text else kind)
                for name, kind in self._found.items()
            ]
        )

    def arrays(self, rows: list[Mapping[str, Any]]) -> list[pa.Array]:
        made = []
        for name, kind in self._found.items():
            values = [row.get(name) for row in rows]
            if kind is None:
                values = [v if isinstance(v, str | None) else _as_json(v) for v in values]
            made.append(
                _in_range(_array(values, pa.string() if kind in (None, pa.null()) else kind))
            )
        return made


def _common(known: pa.DataType | None, values: list[Any]) -> pa.DataType | None:
    if known is None:
        return None
    try:
        here = _inferred(values)
        both = [pa.schema([("column", kind)]) for kind in (known, here)]
        return pa.unify_schemas(both, promote_options="permissive").field("column").type
    except _MIXED:
        return None


def _inferred(values: list[Any]) -> pa.DataType:
    try:
        kind = pa.array(values).type
        if "[us" in str(kind) and any(map(has_nanosecond, values)):
            raise ValueError("pyarrow would cut nanoseconds off, which it does not see here")
        return kind
    except UnicodeEncodeError:
        if all(isinstance(value, str | None) for value in values):
            return pa.string()
        raise  # inside a nested value it may be a field's name, which must not be changed


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, kind)
    except UnicodeEncodeError:
        return pa.array([_encodable(value) for value in values], kind)


def _encodable(value: Any) -> Any:
    """The same with U+FFFD for halves of surrogate pairs, which Arrow cannot hold."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    return [_encodable(item) for item in value] if isinstance(value, list) else value


def _encodable_name(name: str) -> str:
    """The same with such halves written out, so that two names stay two."""
    return name.encode("utf-8", "backslashreplace").decode()


def _as_json(value: Any) -> str | None:
    return None if value is None else json_line(value).decode().removesuffix("\n")
