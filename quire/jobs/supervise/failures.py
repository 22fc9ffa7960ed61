"""Why rows failed, counted by the type of their errors: what a run says at its end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from quire.jobs.store.segments import ResultIndex, lines


@dataclass(frozen=True, slots=True)
class Failures:
    """Rows that failed with one type of error, and what one of them says."""

    error_type: str
    count: int
    example: str


def failures_of(job_dir: Path, index: ResultIndex) -> tuple[Failures, ...]:
    """The most frequent first. Reads the file of errors alone; a row that succeeded since, or
    failed again, counts by its last word."""
    counts, examples = Counter[str](), dict[str, str]()
    for line in lines(job_dir, 0):
        row = None if line.fields is None else line.fields.get("row")
        if line.fields is None or not isinstance(row, int) or index.position(row) != line.position:
            continue
        kind = str(line.fields.get("error_type"))
        counts[kind] += 1
        examples.setdefault(kind, str(line.fields.get("error")))
    return tuple(Failures(kind, count, examples[kind]) for kind, count in counts.most_common())
