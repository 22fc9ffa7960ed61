"""A JSON file that is one array of objects: its elements are the rows, read one after the other."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from quire.errors import InvalidOption
from quire.jobs.input.jsonl import DECODER, LONGEST_ROW, Values, row_of
from quire.jobs.input.packed import open_bytes, unpacking
from quire.jobs.rows import BadRow

_CHUNK = 1 << 16
_SPACE = " \t\r\n"


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
        text = _Text(path, iter(lambda: file.read(_CHUNK), b""))
        text.skip("[")
        number = 0
        while text.peek() != "]":
            if number:
                text.skip(",")
            value = text.value()
            yield row_of(value, "the element") if wanted(number) else None
            number += 1


class _Text:
    """The part of the file that is not read yet, as far as it was needed."""

    def __init__(self, path: Path, chunks: Iterator[bytes]) -> None:
        self._path, self._chunks = path, chunks
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._text, self._at, self._passed = "", 0, 0

    def peek(self) -> str:
        """The next character that is no space."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _SPACE:
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                raise self._wrong("it ends in the middle of the array")

    def skip(self, expected: str) -> None:
        if self.peek() != expected:
            raise self._wrong(f"{expected!r} was expected, not {self.peek()!r}")
        self._at += 1

    def value(self) -> Any:
        """The next element. What is there is tried again with twice as much until it is whole."""
        self.peek()
        while True:
            try:
                found, end = DECODER.raw_decode(self._text, self._at)
                # A number at the end of what was read may go on.
                if end < len(self._text) or not self._more():
                    self._at = end
                    return found
            except RecursionError:
                raise self._wrong("an element nests too deeply") from None
            except ValueError as error:
                size = len(self._text) - self._at
                whole = isinstance(error, json.JSONDecodeError) and error.pos < len(self._text) - 16
                if whole or size > LONGEST_ROW or not self._more(size):
                    raise self._wrong(str(error)) from None

    def _more(self, size: int = 0) -> bool:
        """Read on by at least `size` characters; whether there was anything."""
        parts, count = [self._text[self._at :]], 0
        self._passed += self._at
        for chunk in self._chunks:
            try:
                parts.append(self._decoder.decode(chunk))
            except UnicodeDecodeError as error:
                raise self._wrong(f"it is not UTF-8: {error.reason}") from None
            count += len(parts[-1])
            if count > size:
                break
        self._text, self._at = "".join(parts), 0
        return count > 0

    def _wrong(self, what: str) -> InvalidOption:
        return InvalidOption(
            f"{self._path} is no JSON array of rows: {what} (about character "
            f"{self._passed + self._at}). Give JSON lines, one object per line, if it holds those.",
            parameter="input",
            value=str(self._path),
        )
