"""The input in chunks of consecutive rows, and where in its file each begins.

The first worker writes them to `chunks.json`, and all workers read them. A chunk of unpacked JSON
lines is found by its byte; other files are read from their beginning, without parsing the rows
before the chunk.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from quire.errors import CorruptJob
from quire.jobs.input.files import InputFile
from quire.jobs.input.jsonl import line_starts, read_jsonl
from quire.jobs.input.packed import is_packed
from quire.jobs.input.rows import BadRow, InputRow
from quire.jobs.store.bounded import read_bounded
from quire.jobs.store.durable import write_file

NAME = "chunks.json"
ROWS = 4096
FINER = 8  # the last eighth of the rows (at most MOST_FINE * ROWS) is cut into eighths of chunks
MOST_FINE = 1000
_MOST_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows `first` to `first + count` of the input, all of one file. `start` is the byte where the
    first row begins, None if it can be found only by reading the file."""

    number: int
    file: int
    first: int
    first_in_file: int
    count: int
    start: int | None


class Chunks:
    """All chunks of a job, in order."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self._chunks = tuple(chunks)
        self._firsts = [chunk.first for chunk in chunks]

    def __len__(self) -> int:
        return len(self._chunks)

    def __getitem__(self, number: int) -> Chunk:
        return self._chunks[number]

    def of_row(self, row: int) -> int:
        """The number of the chunk that an input row is in."""
        return bisect_right(self._firsts, row) - 1

    @classmethod
    def cut(cls, files: Sequence[InputFile], limit: int | None, size: int) -> Chunks:
        """Read the files once, and cut them. The last rows are cut into smaller chunks, so that at
        the end the others wait for a slow worker only an eighth of the time."""
        parts: list[Chunk] = []
        first = 0
        for i, file in enumerate(files):
            starts = _starts(file)
            at = 0
            while part := list(islice(starts, max(1, size // FINER))):
                parts.append(Chunk(len(parts), i, first + at, at, len(part), part[0]))
                at += len(part)
            first += at
        parts = _limited(parts, limit)
        num_rows = sum(part.count for part in parts)
        fine = num_rows - min(num_rows // FINER, MOST_FINE * size)
        return cls(_whole_chunks(parts, fine, size))

    def save(self, job_dir: Path) -> None:
        rows = [[c.file, c.first, c.first_in_file, c.count, c.start] for c in self._chunks]
        write_file(job_dir / NAME, json.dumps({"chunks": rows}).encode() + b"\n")

    @classmethod
    def load(cls, job_dir: Path) -> Chunks:
        try:
            found = json.loads(read_bounded(job_dir / NAME, _MOST_BYTES))
            return cls([Chunk(i, *map(_whole, row)) for i, row in enumerate(found["chunks"])])  # type: ignore[arg-type]
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptJob(f"{job_dir / NAME} does not read as chunks ({error})") from None


def _whole_chunks(parts: Sequence[Chunk], fine: int, size: int) -> list[Chunk]:
    """Parts put together to chunks of `size` rows, those from row `fine` on left as they are."""
    chunks: list[Chunk] = []
    for part in parts:
        last = chunks[-1] if chunks and part.first < fine else None
        if last is not None and part.file == last.file and last.count + part.count <= size:
            chunks[-1] = replace(last, count=last.count + part.count)
        else:
            chunks.append(replace(part, number=len(chunks)))
    return chunks


def _whole(value: object) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise ValueError(f"{value!r} is no row or byte")
    return value


def _limited(chunks: Sequence[Chunk], limit: int | None) -> list[Chunk]:
    """The chunks with the first `limit` rows; the last one is shortened."""
    if limit is None:
        return list(chunks)
    kept = [chunk for chunk in chunks if chunk.first < limit]
    if kept and kept[-1].first + kept[-1].count > limit:
        kept[-1] = replace(kept[-1], count=limit - kept[-1].first)
    return kept


def _starts(file: InputFile) -> Iterator[int | None]:
    """The byte at which each row begins, or None for each row if the file cannot seek to it."""
    if _is_seekable(file):
        yield from line_starts(file.path)
        return
    for _ in file.rows(lambda number: False):
        yield None


def _is_seekable(file: InputFile) -> bool:
    return file.format in ("jsonl", "json") and not (is_packed(file.path) or file.is_array)


class ChunkReader:
    """Reads chunks. They mostly come in order, so a file without byte positions is read on from
    the end of its last chunk."""

    def __init__(self, files: Sequence[InputFile]) -> None:
        self._files = files
        self._open: tuple[int, Iterator[object]] | None = None
        self._at, self._wanted = 0, range(0)

    def rows(self, chunk: Chunk) -> Iterator[InputRow]:
        for i, values in enumerate(self._values(chunk)):
            number, in_file = chunk.first + i, chunk.first_in_file + i
            if isinstance(values, BadRow):
                yield InputRow(number, chunk.file, in_file, None, values)
            else:
                yield InputRow(number, chunk.file, in_file, values)  # type: ignore[arg-type]

    def _values(self, chunk: Chunk) -> Iterator[object]:
        file = self._files[chunk.file]
        if chunk.start is not None:
            return islice(read_jsonl(file.path, lambda n: True, start=chunk.start), chunk.count)
        self._wanted = range(chunk.first_in_file, chunk.first_in_file + chunk.count)
        if self._open is None or self._open[0] != chunk.file or self._at > chunk.first_in_file:
            self._open, self._at = (chunk.file, file.rows(lambda n: n in self._wanted)), 0
        rows = self._open[1]
        for _ in islice(rows, chunk.first_in_file - self._at):
            pass
        self._at = chunk.first_in_file + chunk.count
        return islice(rows, chunk.count)
