"""How many rows there will be, counted in a thread, to show the time left."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress

from quire.errors import InvalidOption
from quire.jobs.input.arrow import count_rows
from quire.jobs.input.delimited import WITH_HEADER
from quire.jobs.input.files import InputFile
from quire.jobs.input.packed import open_bytes, unpacking

_CHUNK = 1 << 20


class Counting(threading.Thread):
    """Counts while other work goes on. Lines are counted in place of rows, so a file with blank
    lines or with line breaks inside fields has fewer rows than that. A JSON array is not counted at
    all. The exact number is known when all rows were read."""

    def __init__(self, files: Sequence[InputFile]) -> None:
        super().__init__(name="quire-counting", daemon=True)
        self._files = tuple(files)
        self.num_rows: int | None = None
        self.start()

    def run(self) -> None:
        # A file that cannot be read is an error where its rows are read.
        with suppress(OSError, InvalidOption):
            if not any(file.is_array for file in self._files):
                self.num_rows = sum(_count(file) for file in self._files)


def _count(file: InputFile) -> int:
    if file.is_table:
        return count_rows(file.path)
    num_lines, last = 0, b"\n"
    with unpacking(file.path), open_bytes(file.path) as stream:
        while chunk := stream.read(_CHUNK):
            num_lines += chunk.count(b"\n")
            last = chunk[-1:]
    num_lines += last != b"\n"
    return max(0, num_lines - 1) if file.format in WITH_HEADER else num_lines
