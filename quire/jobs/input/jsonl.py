"""JSON lines: one object per line; blank lines are no rows, a bad line costs itself."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

from quire.jobs.input.packed import open_bytes, unpacking
from quire.jobs.rows import BadRow

LONGEST_ROW = 32 << 20  # bytes
_BOM = b"\xef\xbb\xbf"

Values = dict[str, Any]


def read_jsonl(path: Path, wanted: Callable[[int], bool]) -> Iterator[Values | BadRow | None]:
    """The rows of the file; None for those that are not wanted."""
    number = 0
    with unpacking(path), open_bytes(path) as file:
        if file.read(len(_BOM)) != _BOM:
            file.seek(0)
        for line in _lines(file):
            if isinstance(line, bytes) and not line.strip():
                continue
            if not wanted(number):
                yield None
            elif isinstance(line, BadRow):
                yield line
            else:
                yield parse_line(line)
            number += 1


def _lines(file: IO[bytes] | gzip.GzipFile) -> Iterator[bytes | BadRow]:
    """Each line; one that is longer than a row may be is skipped without being held."""
    while line := file.readline(LONGEST_ROW + 1):
        if len(line) <= LONGEST_ROW or line.endswith(b"\n"):
            yield line
            continue
        size = len(line)
        while (more := file.readline(LONGEST_ROW)) and not more.endswith(b"\n"):
            size += len(more)
        yield BadRow(
            "row_too_long",
            f"the line has {size + len(more)} bytes; a row may have {LONGEST_ROW}",
        )


def parse_line(line: bytes) -> Values | BadRow:
    """The object on a line, or what keeps it from being one."""
    try:
        found = DECODER.decode(line.decode("utf-8").strip())
    except UnicodeDecodeError as error:
        return BadRow("malformed_row", f"the line is not UTF-8: {error.reason} at {error.start}")
    except RecursionError:
        return BadRow("malformed_row", "the line nests too deeply")
    except ValueError as error:
        return BadRow("malformed_row", f"the line is not JSON: {error}")
    return row_of(found, "the line")


def row_of(found: Any, what: str) -> Values | BadRow:
    """The row that a JSON value is, or that it is none."""
    if not isinstance(found, dict):
        return BadRow("malformed_row", f"{what} is JSON, but a {type(found).__name__}, no object")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{text[:20]} is more than a double holds")
    return value


DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
