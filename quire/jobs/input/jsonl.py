"""JSON lines: one object per line; blank lines are no rows, a bad line costs itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from quire.errors import InvalidOption
from quire.jobs.input.packed import open_bytes, unpacking
from quire.jobs.input.rows import BadRow
from quire.jobs.input.strict_json import parse

LONGEST_ROW = 32 << 20  # bytes
_ARRAYS = "only a file whose name ends in .json is read as one"
_BOM = b"\xef\xbb\xbf"
_CR_ALONE = re.compile(rb"\}[ \t]*\r[ \t]*\{")  # between two rows, and nowhere in one
# An object, and an array of them, that go on in the next line as no row begins.
_SPREAD = re.compile(rb'\s*\{([^\n]*[,{\[])?[ \t\r]*\n(\s*"|[ \t]+[{\[])')
_SPREAD_ARRAY = re.compile(rb"\s*\[[ \t\r]*\n\s*\{")

Values = dict[str, Any]


def read_jsonl(
    path: Path, wanted: Callable[[int], bool], *, start: int = 0
) -> Iterator[Values | BadRow | None]:
    """The rows of the file, or those from the one that begins at byte `start` on; None for those
    that are not wanted."""
    number = 0
    with unpacking(path), open_bytes(path) as file:
        if start:
            file.seek(start)
        elif file.peek(len(_BOM)).startswith(_BOM):
            file.read(len(_BOM))
        beginning = file.peek(1 << 13)
        _refuse_other_lines(path, beginning)
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


def _refuse_other_lines(path: Path, beginning: bytes) -> None:
    """Raise InvalidOption if the file is JSON, but its rows are no lines."""
    if b"\n" not in beginning and _CR_ALONE.search(beginning):
        wrong = "the lines of {} end in CR alone, not in LF: convert it with tr '\\r' '\\n'"
    elif _SPREAD.match(beginning):
        wrong = (
            "{} has an object over several lines, and a row is one line: convert it with jq -c . "
            "(or jq -c '.NAME[]' if the rows are a list in it)"
        )
    elif _SPREAD_ARRAY.match(beginning):
        wrong = f"{{}} is a JSON array; {_ARRAYS}"
    else:
        return
    raise InvalidOption(wrong.format(path), parameter="input", value=str(path))


def line_starts(path: Path) -> Iterator[int]:
    """The byte at which each row of a file begins that is not packed."""
    with open_bytes(path) as file:
        at = len(_BOM) if file.read(len(_BOM)) == _BOM else 0
        file.seek(at)
        for line in _lines(file):
            if isinstance(line, BadRow) or line.strip():
                yield at
            at = file.tell()


def _lines(file: IO[bytes]) -> Iterator[bytes | BadRow]:
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
        found = parse(line.decode("utf-8").strip())
    except UnicodeDecodeError as error:
        return BadRow("malformed_row", f"the line is not UTF-8: {error.reason} at {error.start}")
    except ValueError as error:
        return BadRow("malformed_row", f"the line is not JSON: {error}")
    if isinstance(found, list):
        return BadRow("malformed_row", f"the line is a JSON array; {_ARRAYS}")
    return row_of(found, "the line")


def row_of(found: Any, what: str) -> Values | BadRow:
    """The row that a JSON value is, or that it is none."""
    if not isinstance(found, dict):
        return BadRow("malformed_row", f"{what} is JSON, but no object")
    return found
