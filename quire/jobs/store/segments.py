"""Reads the journal: segments of records. Each line is checked, and damaged lines are reported.

A position is the number of a segment and the byte at which a line begins in it. Segment 0 is the
file of failed rows.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from quire.errors import CorruptJob
from quire.jobs.store.bounded import open_regular
from quire.jobs.store.manifest import Manifest
from quire.jobs.store.record import LONGEST_LINE, DamagedRecord, ResultRecord, decode, decode_fields

ERRORS = "errors.jsonl"
_SEGMENT = re.compile(r"results-([0-9]{5,7})\.jsonl")
_OFFSET_BITS = 40  # a segment of up to a terabyte
_OFFSET = (1 << _OFFSET_BITS) - 1
_PAGE_BITS = 8
_PAGE, _IN_PAGE = 1 << _PAGE_BITS, (1 << _PAGE_BITS) - 1


def segment_name(number: int) -> str:
    return ERRORS if number == 0 else f"results-{number:05}.jsonl"


def segments(job_dir: Path) -> list[int]:
    """The numbers of the segments with results, in order."""
    found = (_SEGMENT.fullmatch(name) for name in os.listdir(job_dir))
    return sorted(int(match[1]) for match in found if match)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a segment. `end` is the byte after it; `fields` is None where it is damaged."""

    segment: int
    start: int
    end: int
    fields: dict[str, object] | None

    @property
    def position(self) -> int:
        return position_of(self.segment, self.start)


def position_of(segment: int, start: int) -> int:
    return segment << _OFFSET_BITS | start


def lines(job_dir: Path, segment: int) -> Iterator[Line]:
    """Every line of a segment, also damaged ones; nothing if there is no such file. A line that is
    too long for a record comes in parts, each of them damaged."""
    try:
        number = _opened(job_dir, segment)
    except FileNotFoundError:
        return
    with open(number, "rb") as file:
        start = 0
        while line := file.readline(LONGEST_LINE):
            end = start + len(line)
            try:
                fields = decode_fields(line)
            except DamagedRecord:
                fields = None
            yield Line(segment, start, end, fields)
            start = end


def _opened(job_dir: Path, segment: int) -> int:
    return open_regular(job_dir / segment_name(segment))


@dataclass(frozen=True, slots=True)
class Damage:
    """A range of damaged lines with good lines after them."""

    segment: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{segment_name(self.segment)}, bytes {self.start} to {self.end}"


class ResultIndex:
    """Which rows are done, and where their records are: eight bytes a row if most rows are there.

    A success wins over a failure; among equals the later one wins.
    """

    def __init__(self) -> None:
        # Pages of row numbers, made when first used, so that a large row number takes no more
        # memory than a small one. An entry is position + 1; 0 means not done.
        self._pages: dict[int, array[int]] = {}

    def put(self, row: int, position: int) -> None:
        page = self._pages.get(row >> _PAGE_BITS)
        if page is None:
            page = self._pages[row >> _PAGE_BITS] = array("Q", bytes(8 * _PAGE))
        failed, known = position <= _OFFSET, page[row & _IN_PAGE]
        if failed and known > _OFFSET + 1:
            return
        page[row & _IN_PAGE] = position + 1

    def position(self, row: int) -> int | None:
        page = self._pages.get(row >> _PAGE_BITS)
        place = page[row & _IN_PAGE] if page is not None else 0
        return place - 1 if place else None

    def failed(self, row: int) -> bool:
        position = self.position(row)
        return position is not None and position <= _OFFSET

    def __contains__(self, row: int) -> bool:
        page = self._pages.get(row >> _PAGE_BITS)
        return page is not None and page[row & _IN_PAGE] != 0

    def counts(self) -> tuple[int, int]:
        """How many rows succeeded, and how many failed."""
        done = sum(_PAGE - page.count(0) for page in self._pages.values())
        failed = sum(
            1 for page in self._pages.values() for place in page if 0 < place <= _OFFSET + 1
        )
        return done - failed, failed

    def rows(self) -> Iterator[int]:
        """The rows that are done, in order."""
        for number in sorted(self._pages):
            page = self._pages[number]
            yield from ((number << _PAGE_BITS) + i for i in range(_PAGE) if page[i])

    def positions(self) -> Iterator[int]:
        """The position of each done row, in the order of rows."""
        for number in sorted(self._pages):
            yield from (place - 1 for place in self._pages[number] if place)


class RecordReader:
    """Reads single records by position, with the files kept open."""

    def __init__(self, job_dir: Path) -> None:
        self._job_dir = job_dir
        self._files: dict[int, int] = {}

    def read(self, position: int) -> ResultRecord:
        """The record there; raises DamagedRecord if the file changed since it was scanned."""
        segment, start = position >> _OFFSET_BITS, position & _OFFSET
        if segment not in self._files:
            self._files[segment] = _opened(self._job_dir, segment)
        number, size = self._files[segment], 1 << 12
        while True:
            data = os.pread(number, size, start)
            end = data.find(b"\n")
            if end >= 0:
                return decode(data[: end + 1])
            if len(data) < size or size >= LONGEST_LINE:
                break
            size = min(16 * size, LONGEST_LINE)
        raise DamagedRecord(f"no record at byte {start} of {segment_name(segment)}")

    def close(self) -> None:
        for number in self._files.values():
            os.close(number)
        self._files.clear()

    def __enter__(self) -> RecordReader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _of_another_job(job_dir: Path, line: Line) -> CorruptJob:
    return CorruptJob(
        f"{job_dir / segment_name(line.segment)} holds a record of another job, at byte "
        f"{line.start}. Put this job's own file back, or move that one away: rows without a "
        "record are computed again."
    )


@dataclass(frozen=True, slots=True)
class Scan:
    """The result of reading the whole journal."""

    index: ResultIndex
    damages: tuple[Damage, ...]  # without a damaged end of a file, which every kill may leave
    ends: dict[int, int]  # after the last good line of each segment
    older: tuple[int, ...]  # positions of records from before `first_epoch`, if asked for
    last_epoch: int


def last_epoch(job_dir: Path) -> int:
    """The highest epoch of any record on disk; 0 if there are none."""
    found = (line.fields for n in [0, *segments(job_dir)] for line in lines(job_dir, n))
    return max((int(str(fields["epoch"])) for fields in found if fields is not None), default=0)


def index_of(job_dir: Path, manifest: Manifest) -> ResultIndex:
    """The index of a job's results, for a reader that writes nothing."""
    return scan(job_dir, first_epoch=manifest.first_epoch, job=manifest.id).index


def scan(
    job_dir: Path,
    *,
    first_epoch: int,
    job: str | None = None,
    older_from: int | None = None,
    retry: bool = False,
) -> Scan:
    """Read every segment. `older_from` also collects good records from that epoch up to
    `first_epoch`; `retry` leaves failed rows out, as if they had never run. CorruptJob if a record
    has another id than `job`: its row numbers are those of another job."""
    index, damages, older = ResultIndex(), [], []
    ends: dict[int, int] = {}
    last_epoch = 0
    for segment in [0, *segments(job_dir)]:
        ends[segment] = 0
        for line in lines(job_dir, segment):
            if line.fields is None:
                continue
            if line.start > ends[segment]:
                damages.append(Damage(segment, ends[segment], line.start))
            if line.fields.get("job") != job:
                raise _of_another_job(job_dir, line)
            ends[segment] = line.end
            epoch, row = line.fields["epoch"], line.fields["row"]
            if not isinstance(epoch, int) or not isinstance(row, int):
                continue
            last_epoch = max(last_epoch, epoch)
            if epoch >= first_epoch:
                if segment or not retry:
                    index.put(row, line.position)
            elif older_from is not None and epoch >= older_from and segment:
                older.append(line.position)
    return Scan(index, tuple(damages), ends, tuple(older), last_epoch)
