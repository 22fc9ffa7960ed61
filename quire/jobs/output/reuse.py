"""Rows of a job that changed, kept where what is asked of them is still the same."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from quire.jobs.input.work import WorkRow
from quire.jobs.store.keys import KeyTable
from quire.jobs.store.record import ResultRecord
from quire.jobs.store.segments import RecordReader


def reused(
    rows: Iterator[WorkRow], job_dir: Path, older: Iterable[int], epoch: int
) -> Generator[WorkRow | ResultRecord]:
    """The rows, and in place of those that an older record answers that record, as of now.

    A row is found by its content alone, so rows may have moved. Where answers depend on noise the
    row's seed is part of its content, and only a row of the same key is the same.
    """
    with RecordReader(job_dir) as reader:
        places = KeyTable()
        for position in older:
            places.put(reader.read(position).content, position)
        for row in rows:
            place = places.get(row.content) if row.error is None else None
            record = None if place is None else reader.read(place)
            if record is not None and record.content == row.content:
                yield replace(record, row=row.row, key=row.key, epoch=epoch)
            else:
                yield row
