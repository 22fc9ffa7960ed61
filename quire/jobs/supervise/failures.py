"""Counts failed rows by the type of their errors, for the summary at the end of a run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from quire.jobs.store.segments import ResultIndex, lines


@dataclass(frozen=True, slots=True)
class Failures:
    """The number of rows that failed with one type of error, and the text of one of them."""

    error_type: str
    count: int
    example: str


def failures_of(job_dir: Path, index: ResultIndex) -> tuple[Failures, ...]:
    """The most frequent first. Only the file of errors is read. A row counts by its latest record:
    not at all if it succeeded since."""
    counts, examples = Counter[str](), dict[str, str]()
    for line in lines(job_dir, 0):
        row = None if line.fields is None else line.fields.get("row")
        if line.fields is None or not isinstance(row, int) or index.position(row) != line.position:
            continue
        kind = str(line.fields.get("error_type"))
        counts[kind] += 1
        examples.setdefault(kind, str(line.fields.get("error")))
    return tuple(Failures(kind, count, examples[kind]) for kind, count in counts.most_common())
