"""Rows of an Arrow batch as Python values; a bad value makes only its own row a BadRow.

A file may hold anything: text that is not UTF-8, offsets out of range, unknown time zones. A batch
is checked before its values are read. If the check fails, its rows are read one by one.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pyarrow as pa

from quire.jobs.input.jsonl import LONGEST_ROW, Values
from quire.jobs.input.nanoseconds import fine_value, holds_fine, is_fine
from quire.jobs.input.rows import BadRow


def is_sound(batch: pa.RecordBatch) -> bool:
    """Whether every value is what its type says."""
    try:
        batch.validate(full=True)
    except pa.ArrowException:
        return False
    return True


def values_of(batch: pa.RecordBatch, picked: list[int]) -> list[Values | BadRow]:
    """These rows of the batch, in that order."""
    if not picked:
        return []
    if is_sound(batch) and batch.get_total_buffer_size() <= LONGEST_ROW:
        try:
            rows = batch if len(picked) == batch.num_rows else batch.take(picked)
            columns = [_values(column) for column in rows.columns]
            return [
                dict(zip(rows.schema.names, row, strict=True)) for row in zip(*columns, strict=True)
            ]
        except Exception:  # of any kind, for a bad value: the rows one by one show which
            pass
    return [_row(batch.slice(i, 1)) for i in picked]


def _values(column: pa.Array) -> list[Any]:
    if holds_fine(column.type):
        return [_value(scalar) for scalar in column]
    return column.to_pylist()  # type: ignore[no-any-return]


def _row(row: pa.RecordBatch) -> Values | BadRow:
    values: Values = {}
    size = 0
    for name, column in zip(row.schema.names, row.columns, strict=True):
        try:
            checked = _checked(column)
            size += _num_bytes(checked)
            values[name] = _value(checked[0]) if size <= LONGEST_ROW else None
        except Exception as error:  # pyarrow raises any kind of error for a bad value
            return BadRow("malformed_row", f"column {name!r} cannot be read: {_reason(error)}")
    if size > LONGEST_ROW:
        return BadRow("row_too_long", f"the row has {size} bytes; a row may have {LONGEST_ROW}")
    return values


def _checked(column: pa.Array) -> pa.Array:
    """The column with its one value, checked against its type; ArrowInvalid if it does not fit. Of
    a dictionary only the entry in use is checked: other entries belong to other rows."""
    if not isinstance(column, pa.DictionaryArray):
        column.validate(full=True)
        return column
    place = column.indices[0].as_py()
    if place is not None and not 0 <= place < len(column.dictionary):
        raise ValueError(f"it is entry {place} of a dictionary that has {len(column.dictionary)}")
    return pa.nulls(1) if place is None else _checked(column.dictionary.slice(place, 1))


def _num_bytes(column: pa.Array) -> int:
    try:
        return int(column.nbytes)
    except pa.ArrowNotImplementedError:  # of types that do not tell, none of which holds text
        return 0


def _value(scalar: Any) -> Any:
    """A scalar as a Python value. It is text where Python has no value for it (a date before the
    year 1), and in UTC where its time zone is not known here."""
    if not scalar.is_valid:
        return None
    with suppress(Exception):  # see above
        if is_fine(scalar.type):
            return fine_value(scalar)
        if not holds_fine(scalar.type):
            return scalar.as_py()
    return _by_parts(scalar)


def _by_parts(scalar: Any) -> Any:
    kind = scalar.type
    if isinstance(scalar, pa.MapScalar):
        return [(_value(pair["key"]), _value(pair["value"])) for pair in scalar.values]
    if isinstance(scalar, pa.StructScalar):
        names = [field.name for field in kind]
        if len(set(names)) < len(names):
            raise ValueError("it has two fields of one name")
        return {name: _value(scalar[name]) for name in names}
    if hasattr(scalar, "values"):  # lists of all sorts
        return [_value(each) for each in scalar.values]
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        zone = "UTC" if is_fine(kind) or _has_date(scalar) else None
        return _value(pa.scalar(scalar.value, pa.timestamp(kind.unit, zone)))
    if isinstance(inner := getattr(scalar, "value", None), pa.Scalar):
        return _value(inner)  # of a dictionary, a union, runs, or a type on top of another
    return str(scalar.cast("string"))


def _has_date(scalar: Any) -> bool:
    """Whether Python has a date for this moment."""
    try:
        pa.scalar(scalar.value, pa.timestamp(scalar.type.unit)).as_py()
    except (OverflowError, ValueError):
        return False
    return True


def _reason(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".") or type(error).__name__
