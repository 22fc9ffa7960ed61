"""CSV and TSV with a header line. Every value is text; a row with too few or too many fields is a
BadRow. If the header of a CSV has no comma but semicolons, tabs or bars, these separate the fields:
spreadsheets write semicolons in countries where numbers have a decimal comma. A first line such as
"sep=;" names the separator.

If the quotes of a row do not match, it is uncertain which lines belong to it. The rule: read it
again, taking a quote that does not end a field as text; if that gives a whole row, its lines are
bad, else the lines up to the error. But if all lines after its first one are rows by themselves,
only the first is bad. The error names the lines.
"""

from __future__ import annotations

import io
import re
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from quire.errors import InvalidOption
from quire.jobs.input.fields import Fields, NotDelimited, are_rows, without_end
from quire.jobs.input.jsonl import LONGEST_ROW
from quire.jobs.input.packed import NOT_UTF8, open_bytes, unpacking
from quire.jobs.input.rows import BadRow, repeated

WITH_HEADER = ("csv", "tsv")  # formats
Row = dict[str, str] | BadRow
_NOT_UTF8 = re.compile("[\udc80-\udcff]")
_QUOTED = re.compile('"[^"]*"')
_SEPARATOR_SAID = re.compile(r"sep=([,;|\t])\r?\n?")  # the first line, as Excel reads it
# Lines and characters to read ahead for the end of a faulty row, so that a file full of such rows
# is still read quickly.
_LOOK_LINES, _LOOK_SIZE = 100, 1 << 16


def read_delimited(
    path: Path, wanted: Callable[[int], bool], delimiter: str = ","
) -> Iterator[Row | None]:
    """The rows of the file; None for those that are not wanted."""
    with unpacking(path), _opened(path) as file:
        rows = _Rows(file, delimiter)
        rows.read_header(path)
        number = 0
        while (row := rows.next()) is not None:
            yield row if wanted(number) else None
            number += 1


def _opened(path: Path) -> IO[str]:
    """The file as text. A carriage return ends lines only in a file without line feeds: some
    programs write it unquoted inside fields."""
    with open_bytes(path) as file:
        beginning = file.read(1 << 16)
    newline = "\r" if b"\r" in beginning and b"\n" not in beginning else "\n"
    # Bytes that are no UTF-8 become lone surrogates, and `_row` refuses the row that has one.
    return io.TextIOWrapper(
        open_bytes(path), encoding="utf-8-sig", errors="surrogateescape", newline=newline
    )


class _Lines:
    """The lines of a file, numbered from 1; lines that were read ahead can be put back."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._back: deque[str] = deque()
        self.number = 0  # of the line that was taken last

    def take(self) -> str | None:
        """The next line with its end, or the beginning of one that is too long for a row."""
        line = self._back.popleft() if self._back else self._file.readline(LONGEST_ROW + 1)
        self.number += bool(line)
        return line or None

    def skip_rest(self) -> None:
        """Pass over what is left of a line that was not read whole."""
        while (more := self._file.readline(LONGEST_ROW)) and not more.endswith(("\n", "\r")):
            pass

    def put_back(self, lines: list[str]) -> None:
        self._back.extendleft(reversed(lines))
        self.number -= len(lines)


class _Rows:
    def __init__(self, file: IO[str], delimiter: str) -> None:
        self._lines, self._delimiter = _Lines(file), delimiter
        self._header: list[str] = []

    def read_header(self, path: Path) -> None:
        line = self._lines.take()
        if said := _SEPARATOR_SAID.fullmatch(line or ""):
            self._delimiter, line = said[1], self._lines.take()
        else:
            self._delimiter = _separator(line or "", self._delimiter)
        fields = Fields(self._delimiter)
        try:
            while line is not None and not fields.feed(line):
                line = self._lines.take() if self._lines.number < _LOOK_LINES else None
        except NotDelimited as error:
            raise _no_header(path, f"is no CSV: {error}") from None
        header = fields.found if line is not None and without_end(line) else []
        twice = repeated(header)
        if not header or twice:
            raise _no_header(path, f"names {twice} twice" if twice else "is missing")
        if any(_NOT_UTF8.search(name) for name in header):
            raise _no_header(path, f"is {NOT_UTF8}")
        self._header = header

    def next(self) -> Row | None:
        """The next row, None at the end of the file."""
        line = self._lines.take()
        while line is not None and not without_end(line):
            line = self._lines.take()
        if line is None:
            return None
        taken, fields, size, wrong = [line], Fields(self._delimiter), len(line), ""
        try:
            while size <= LONGEST_ROW and not fields.feed(taken[-1]):
                more = self._lines.take()
                if more is None:
                    raise NotDelimited("a quote is never closed")
                taken.append(more)
                size += len(more)
        except NotDelimited as error:
            return self._misread(taken, str(error))
        if size > LONGEST_ROW:
            return self._too_long(taken, fields)
        if len(fields.found) != len(self._header):
            wrong = f"fields: {len(self._header)} in the header, {len(fields.found)} here"
            return self._misread(taken, wrong) if len(taken) > 1 else self._bad(1, wrong)
        return self._row(fields.found, len(taken))

    def _row(self, found: list[str], num_lines: int) -> Row:
        for name, field in zip(self._header, found, strict=True):
            if not field.isascii() and _NOT_UTF8.search(field):
                return self._bad(num_lines, f"column {name!r} is {NOT_UTF8}")
        return dict(zip(self._header, found, strict=True))

    def _bad(self, num_lines: int, wrong: str) -> BadRow:
        """The error of a row that is the last `num_lines` lines."""
        first = self._lines.number - num_lines + 1
        return BadRow("malformed_row", f"{self._row_since(first)} is no CSV: {wrong}")

    def _row_since(self, first: int) -> str:
        """The name of the row from line `first` to the line that was read last."""
        last = self._lines.number
        return f"the row in line {last}" if first == last else f"the row in lines {first} to {last}"

    def _misread(self, taken: list[str], wrong: str) -> BadRow:
        """The error of a row that is faulty within these lines: decide which belong to it."""
        went_wrong = len(taken)
        num_lines = self._lenient_end(taken) or went_wrong
        self._lines.put_back(taken[num_lines:])
        behind = taken[1:num_lines]
        if behind and are_rows(behind, len(self._header), self._delimiter):
            self._lines.put_back(behind)
            num_lines = 1
        return self._bad(num_lines, wrong)

    def _lenient_end(self, taken: list[str]) -> int | None:
        """How many lines the row has if a quote that does not end a field is taken as text; None if
        that gives no whole row either. Lines read for this are added to `taken`."""
        fields, size, at = Fields(self._delimiter, lenient=True), 0, 0
        while True:
            if at == len(taken):
                more = self._lines.take() if at < _LOOK_LINES and size < _LOOK_SIZE else None
                if more is None:
                    return None
                taken.append(more)
            size += len(taken[at])
            at += 1
            if fields.feed(taken[at - 1]):
                return at if len(fields.found) == len(self._header) else None

    def _too_long(self, taken: list[str], fields: Fields) -> BadRow:
        """Skip a row that is too long to be kept, up to its end."""
        behind, line = taken[1:], taken[-1]
        if behind and not _is_cut(line) and are_rows(behind, len(self._header), self._delimiter):
            self._lines.put_back(behind)
            return self._bad(1, "a quote is never closed")
        first = self._lines.number - len(behind)
        with suppress(NotDelimited):
            while not _is_cut(line) and not fields.feed(line):
                fields.forget()
                more = self._lines.take()
                if more is None:
                    break
                line = more
        if _is_cut(line):
            self._lines.skip_rest()
        return BadRow(
            "row_too_long",
            f"{self._row_since(first)} is longer than a row may be: {LONGEST_ROW}; "
            "its quote may be one that is never closed",
        )


def _separator(header: str, usual: str) -> str:
    """What stands between the names of a header, outside of quotes."""
    bare = _QUOTED.sub("", header)
    others = (",", ";", "\t", "|") if usual == "," else ()
    return next((sign for sign in others if sign in bare), usual)


def _is_cut(line: str) -> bool:
    """Whether this is only the beginning of a line."""
    return len(line) > LONGEST_ROW and not line.endswith(("\n", "\r"))


def _no_header(path: Path, what: str) -> InvalidOption:
    return InvalidOption(
        f"the header of {path} {what}; its first line gives every column a name of its own",
        parameter="input",
        value=str(path),
    )
