"""CSV and TSV with a header line; every value is text, a row with other columns costs itself."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from quire.errors import InvalidOption
from quire.jobs.input.jsonl import LONGEST_ROW
from quire.jobs.input.packed import is_packed, unpacking
from quire.jobs.rows import BadRow

Row = dict[str, str] | BadRow


def read_delimited(
    path: Path, wanted: Callable[[int], bool], delimiter: str = ","
) -> Iterator[Row | None]:
    """The rows of the file; None for those that are not wanted."""
    csv.field_size_limit(LONGEST_ROW)
    with unpacking(path), _opened(path) as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        header = _header(reader, path)
        number = 0
        while True:
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                row: dict[str, str] | BadRow = BadRow(
                    "malformed_row", f"the row is no CSV: {error}"
                )
            else:
                if not fields:
                    continue
                row = _row(header, fields)
            yield row if wanted(number) else None
            number += 1


def _opened(path: Path) -> IO[str]:
    # Bytes that are no UTF-8 come through as lone surrogates, and are told from text below.
    if is_packed(path):
        return gzip.open(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="")
    return open(path, encoding="utf-8-sig", errors="surrogateescape", newline="")


def _header(reader: Iterator[list[str]], path: Path) -> list[str]:
    try:
        header = next(reader, [])
    except csv.Error as error:
        raise InvalidOption(f"the header of {path} is no CSV: {error}", parameter="input") from None
    repeated = {name for name in header if header.count(name) > 1}
    if not header or repeated:
        what = f"names {sorted(repeated)} twice" if repeated else "is missing"
        raise InvalidOption(
            f"the header of {path} {what}; its first line gives every column a name of its own",
            parameter="input",
            value=str(path),
        )
    return header


def _row(header: list[str], fields: list[str]) -> Row:
    if len(fields) != len(header):
        return BadRow(
            "malformed_row", f"the row has {len(fields)} fields, and the header {len(header)}"
        )
    for name, field in zip(header, fields, strict=True):
        if not field.isascii() and any("\udc80" <= c <= "\udcff" for c in field):
            return BadRow("malformed_row", f"column {name!r} is not UTF-8")
    return dict(zip(header, fields, strict=True))
