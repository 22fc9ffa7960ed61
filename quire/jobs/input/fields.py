"""The fields of one CSV or TSV row, which may take several lines.

They follow RFC 4180: a field that begins with a quote ends with a quote, may hold line breaks, and
has "" for a quote. In any other field a quote is an ordinary character.
"""

from __future__ import annotations

from collections.abc import Iterable


def without_end(line: str) -> str:
    """A line without what ends it: a line feed, a carriage return, or both."""
    return line.removesuffix("\n").removesuffix("\r")


class NotDelimited(Exception):
    """The quotes of a row do not match."""


class Fields:
    """Reads the lines of a row, one by one. `lenient`: a quote ends its field only before a
    delimiter or the end of a line, and is an ordinary character elsewhere."""

    def __init__(self, delimiter: str, *, lenient: bool = False) -> None:
        self._delimiter, self._lenient = delimiter, lenient
        self.found: list[str] = []
        self._open: list[str] | None = None  # the parts of a quoted field that is not closed yet

    def feed(self, line: str) -> bool:
        """Read a line; True when the row is whole. Raises NotDelimited."""
        if self._open is None and '"' not in line:
            self.found += without_end(line).split(self._delimiter)
            return True
        at = self._quoted(line, 0) if self._open is not None else 0
        while at is not None:
            if line.startswith('"', at):
                self._open = []
                at = self._quoted(line, at + 1)
            else:
                at = self._bare(line, at)
        return self._open is None

    def forget(self) -> None:
        """Drop all text so far, and remember only whether a field is open."""
        self.found = []
        if self._open is not None:
            self._open = []

    def _bare(self, line: str, at: int) -> int | None:
        """Read the field that begins here; returns where the next one begins, None at the end."""
        end = line.find(self._delimiter, at)
        self.found.append(line[at:end] if end >= 0 else without_end(line[at:]))
        return end + 1 if end >= 0 else None

    def _quoted(self, line: str, at: int) -> int | None:
        """The same for the rest of an open quoted field; None also if the line ends inside it."""
        parts = self._open if self._open is not None else []
        while (end := line.find('"', at)) >= 0:
            is_pair = line.startswith('"', end + 1)
            if not is_pair and self._ends_field(line, end + 1):
                break
            if not is_pair and not self._lenient:
                raise NotDelimited("a closing quote is followed by more of its field")
            parts.append(line[at : end + 1])
            at = end + 1 + is_pair
        if end < 0:
            parts.append(line[at:])
            return None
        self.found.append("".join([*parts, line[at:end]]))
        self._open = None
        return end + 2 if line.startswith(self._delimiter, end + 1) else None

    def _ends_field(self, line: str, at: int) -> bool:
        return line.startswith(self._delimiter, at) or not without_end(line[at : at + 3])


def are_rows(lines: Iterable[str], num_fields: int, delimiter: str) -> bool:
    """Whether these lines, read from the first on, are rows of so many fields with matching quotes;
    the last row may continue after these lines."""
    fields, num_quotes = Fields(delimiter), 0
    for line in lines:
        if not num_quotes and not without_end(line):
            continue
        num_quotes += line.count('"')
        try:
            if not fields.feed(line):
                continue
        except NotDelimited:
            return False
        if len(fields.found) != num_fields or num_quotes % 2:
            return False
        fields, num_quotes = Fields(delimiter), 0
    return True
