"""The job's table in Arrow: an Arrow input keeps its own columns bit for bit; for other inputs the
types are found in a first pass, and a column of mixed types becomes JSON text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from quire.jobs.columns import CHOICE_PROBS, SCORES, TIMINGS, ResultColumns
from quire.jobs.input.arrow import read_batches, read_schema
from quire.jobs.manifest import Manifest
from quire.jobs.segments import RecordReader, ResultIndex
from quire.jobs.table import all_arrow, job_files, joined

_CHUNK = 1024
_MIXED = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError)


def batches(
    job_dir: Path, manifest: Manifest, index: ResultIndex
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The schema and the batches of the whole table."""
    files = job_files(job_dir, manifest)
    if all_arrow(files) and files:
        schemas = [read_schema(file.path) for file in files]
        if all(schema.equals(schemas[0]) for schema in schemas):
            schema = _with_results(schemas[0], manifest)
            return schema, _from_arrow(job_dir, manifest, index, schema)
    types = _Types()
    for chunk in _chunks(joined(job_dir, manifest, index)):
        types.see([values for values, _ in chunk])
    schema = _with_results(types.schema(), manifest)
    return schema, _from_values(job_dir, manifest, index, types, schema)


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
    if name in (manifest.output_column, "finish_reason") and listed:
        return pa.list_(pa.string())
    return pa.string()


def _from_arrow(
    job_dir: Path, manifest: Manifest, index: ResultIndex, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    columns, width = ResultColumns(manifest), max(1, len(manifest.settings))
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
                    inputs = batch.take(picked).columns
                    yield _batch(inputs, results, columns, schema)


def _from_values(
    job_dir: Path, manifest: Manifest, index: ResultIndex, types: _Types, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    columns = ResultColumns(manifest)
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
    while chunk := list(islice(rows, _CHUNK)):
        yield chunk


class _Types:
    """What type each column has, over all rows; None for one that has several."""

    def __init__(self) -> None:
        self._found: dict[str, pa.DataType | None] = {}

    def see(self, rows: list[Mapping[str, Any]]) -> None:
        for name in dict.fromkeys(name for row in rows for name in row):
            known = self._found.get(name, pa.null())
            self._found[name] = _common(known, [row.get(name) for row in rows])

    def schema(self) -> pa.Schema:
        text = (None, pa.null())
        return pa.schema(
            [(name, pa.string() if kind in text else kind) for name, kind in self._found.items()]
        )

    def arrays(self, rows: list[Mapping[str, Any]]) -> list[pa.Array]:
        made = []
        for name, kind in self._found.items():
            values = [row.get(name) for row in rows]
            if kind is None:
                values = [v if isinstance(v, str | None) else _as_json(v) for v in values]
            made.append(_array(values, pa.string() if kind in (None, pa.null()) else kind))
        return made


def _common(known: pa.DataType | None, values: list[Any]) -> pa.DataType | None:
    if known is None:
        return None
    try:
        here = _array(values, None).type
        both = [pa.schema([("column", kind)]) for kind in (known, here)]
        return pa.unify_schemas(both, promote_options="permissive").field("column").type
    except _MIXED:
        return None


def _array(values: list[Any], kind: pa.DataType | None) -> pa.Array:
    try:
        return pa.array(values, kind)
    except UnicodeEncodeError:
        return pa.array([_encodable(value) for value in values], kind)


def _encodable(value: Any) -> Any:
    """The same with U+FFFD for halves of surrogate pairs, which Arrow cannot hold."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    if isinstance(value, list):
        return [_encodable(item) for item in value]
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return value


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
