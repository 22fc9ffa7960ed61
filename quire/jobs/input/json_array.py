"""A JSON file that is one array of objects: its elements are the rows, read one after the other.

An element is the text between two commas of the array itself. If it is not JSON, only its row is
bad. An element that is never closed reaches to the end of the file, and its error says so.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from quire.jobs.input.jsonl import LONGEST_ROW, Values, row_of
from quire.jobs.input.packed import NOT_UTF8, open_bytes, unpacking
from quire.jobs.input.rows import BadRow
from quire.jobs.input.strict_json import parse

_CHUNK = 1 << 16
_SIGNS = re.compile(r'["\[\]{},]')
_INNER_SIGNS = re.compile(r'["\[\]{}]')  # inside an element, commas separate nothing
_STRING_END = re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_NOT_UTF8 = re.compile("[\udc80-\udcff]")


def is_array(path: Path) -> bool:
    """Whether the file's first character opens an array."""
    with unpacking(path), open_bytes(path) as file:
        while chunk := file.read(4096):
            text = chunk.removeprefix(codecs.BOM_UTF8).lstrip()
            if text:
                return text[:1] == b"["
    return False


def read_array(path: Path, wanted: Callable[[int], bool]) -> Iterator[Values | BadRow | None]:
    """The rows of the file; None for those that are not wanted."""
    with unpacking(path), open_bytes(path) as file:
        # Bytes that are no UTF-8 become lone surrogates, and make their element a bad row.
        decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
        chunks = iter(lambda: file.read(_CHUNK), b"")
        scanner = _Scanner(decoder.decode(chunk) for chunk in chunks)
        for number, element in enumerate(scanner.elements()):
            yield _row(element) if wanted(number) else None


@dataclass(frozen=True, slots=True)
class _Element:
    """The text between two commas. `start` is its place in the file, in characters; `text` is None
    if it is longer than a row may be; `wrong` is the error of brackets that do not match."""

    start: int
    text: str | None
    wrong: str | None = None


def _row(element: _Element) -> Values | BadRow:
    what = f"the element at character {element.start}"
    if element.wrong is not None:
        return BadRow("malformed_row", f"{what} {element.wrong}")
    if element.text is None:
        return BadRow("row_too_long", f"{what} is longer than a row may be: {LONGEST_ROW}")
    if not element.text.isascii() and _NOT_UTF8.search(element.text):
        return BadRow("malformed_row", f"{what} is {NOT_UTF8}")
    try:
        return row_of(parse(element.text), what)
    except ValueError as error:
        return BadRow("malformed_row", f"{what} is not JSON: {error}")


class _Scanner:
    """Finds where elements end by strings and brackets alone, each character once."""

    def __init__(self, chunks: Iterator[str]) -> None:
        self._chunks = chunks
        self._text, self._at, self._passed = "", 0, 0
        self._begin = 0  # where the element begins in `_text`
        self._parts: list[str] = []  # the element's text before `_text`
        self._size = 0  # characters of these parts, also of dropped ones

    def elements(self) -> Iterator[_Element]:
        """Every element of the array that opens with the file's first character."""
        while "[" not in self._text and self._more():
            pass
        self._at = self._text.find("[") + 1
        end = ","
        while end == ",":
            self._parts, self._size, self._begin = [], 0, self._at
            start = self._passed + self._at
            end = self._find_end()
            text = self._taken(len(end))
            if text == "" and end == "]":  # of an empty array, or behind a last comma
                break
            wrong = None if end else "is never closed, or the file was cut; it reaches to its end"
            yield _Element(start, text, wrong)
        while end and not self._text[self._at :].strip() and self._more():
            pass
        if end and self._text[self._at :].strip():
            yield _Element(
                self._passed + self._at, None, "and all that follows is behind the array"
            )

    def _find_end(self) -> str:
        """Move past the comma or bracket that ends the element; returns it, or "" if none does."""
        depth = 0
        while True:
            found = (_INNER_SIGNS if depth else _SIGNS).search(self._text, self._at)
            if found is None:
                self._at = len(self._text)
                if not self._more():
                    return ""
                continue
            sign, self._at = found.group(), found.end()
            if sign == '"':
                if not self._pass_string():
                    return ""
            elif depth == 0 and sign in ",]":
                return sign
            elif sign in "[{":
                depth += 1
            elif depth:
                depth -= 1

    def _pass_string(self) -> bool:
        """Move past the quote that ends a string; False if there is none."""
        while (found := _STRING_END.match(self._text, self._at)) is None:
            read = self._text[self._at :]
            # A backslash at the end of a chunk is read together with the next chunk.
            self._at = len(self._text) - (len(read) - len(read.rstrip("\\"))) % 2
            if not self._more():
                return False
        self._at = found.end()
        return True

    def _taken(self, end: int) -> str | None:
        """The element's text, without the sign that ended it; None if it is too long."""
        text = self._text[self._begin : self._at - end]
        if self._size + len(text) > LONGEST_ROW:
            return None
        return "".join([*self._parts, text]).strip()

    def _more(self) -> bool:
        """Read the next chunk, and keep the text read so far; False at the end of the file."""
        chunk = next(self._chunks, None)
        if chunk is None:
            return False
        part = self._text[self._begin : self._at]
        self._size += len(part)
        if self._size <= LONGEST_ROW:
            self._parts.append(part)
        else:
            self._parts.clear()
        self._passed += self._at
        self._text = self._text[self._at :] + chunk
        self._at = self._begin = 0
        return True
