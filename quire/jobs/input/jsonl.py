"""JSON lines: one object per line. Blank lines are skipped; a bad line is one BadRow."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

from quire.errors import InvalidOption
from quire.jobs.input.packed import NOT_UTF8, open_bytes, unpacking
from quire.jobs.input.rows import BadRow
from quire.jobs.input.strict_json import parse

LONGEST_ROW = 32 << 20  # bytes
_ARRAYS = "only a file whose name ends in .json is read as one, or with --format json"
_BOM = b"\xef\xbb\xbf"
_CR_ALONE = re.compile(rb"\}[ \t]*\r[ \t]*\{")  # between two rows, and nowhere in one
# An object, or an array of objects, that continues in the next line, as no row does.
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
        if start:  # a packed file, always read from byte 0, may be unable to seek
            file.seek(start)
        _refuse_other_lines(path, file.peek(1 << 13).removeprefix(_BOM))
        for _, _, line in lines_of(file, start):
            yield parse_line(line) if wanted(number) else None
            number += 1


def _refuse_other_lines(path: Path, beginning: bytes) -> None:
    """Raise InvalidOption if the file is JSON, but does not have one row per line."""
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
    """The byte at which each row begins, of a file that is not packed."""
    with open_bytes(path) as file:
        yield from (start for _, start, _ in lines_of(file))


def lines_of(file: BufferedReader, at: int = 0) -> Iterator[tuple[int, int, bytes | BadRow]]:
    """The number (from 1), the place and the bytes of each line that is not blank, of a file that
    is read from byte `at` on. A line that is too long for a row is skipped and not kept."""
    number = 0
    if not at and file.peek(len(_BOM)).startswith(_BOM):
        at = len(file.read(len(_BOM)))
    while line := file.readline(LONGEST_ROW + 1):
        start, size, number = at, len(line), number + 1
        is_long, more = size > LONGEST_ROW and not line.endswith(b"\n"), line
        while is_long and not more.endswith(b"\n") and (more := file.readline(LONGEST_ROW)):
            size += len(more)
        at += size
        if is_long:
            wrong = f"the line has {size} bytes; a row may have {LONGEST_ROW}"
            yield number, start, BadRow("row_too_long", wrong)
        elif line.strip():
            yield number, start, line


def parse_line(line: bytes | BadRow) -> Values | BadRow:
    """The object on a line, or the error of the line."""
    if isinstance(line, BadRow):
        return line
    try:
        found = parse(line.decode("utf-8").strip())
    except UnicodeDecodeError as error:
        return BadRow(
            "malformed_row", f"the line is {NOT_UTF8}: {error.reason} at its byte {error.start}"
        )
    except ValueError as error:
        return BadRow("malformed_row", f"the line is not JSON: {error}")
    if isinstance(found, list):
        return BadRow("malformed_row", f"the line is a JSON array; {_ARRAYS}")
    return row_of(found, "the line")


def row_of(found: Any, what: str) -> Values | BadRow:
    """The row that a JSON value is, or the error if it is not an object."""
    if not isinstance(found, dict):
        return BadRow("malformed_row", f"{what} is JSON, but no object")
    return found
