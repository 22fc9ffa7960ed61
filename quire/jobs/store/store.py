"""Reads everything about a job, without an engine: manifest, results, metrics, table.

    OUTPUT.quire/
        manifest.json          what the job is
        results-00001.jsonl    one checked record per finished row, in the order they finished
        errors.jsonl           the same for rows that failed
        metrics.jsonl          a line a second from the engine
        lock                   who writes

The table is every row of the input that has a result, with the columns that the job adds. These
functions only read files, so they also work for a job that still runs. The modules beside this one
implement them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.jobs.input.prompts import rendered_prompt
from quire.jobs.output.columns import ResultColumns
from quire.jobs.output.joined import joined
from quire.jobs.store.bounded import bounded_lines
from quire.jobs.store.lock import holder
from quire.jobs.store.manifest import Manifest
from quire.jobs.store.place import job_dir_of
from quire.jobs.store.record import ResultRecord
from quire.jobs.store.segments import RecordReader, ResultIndex, index_of
from quire.jobs.store.stamps import FileStamp
from quire.jobs.supervise.metrics import NAME as METRICS

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Table

_LONGEST_METRICS = 1 << 16  # bytes of a line

__all__ = [
    "FileStamp",
    "Manifest",
    "ResultRecord",
    "is_running",
    "job_dir_of",
    "read_batches",
    "read_errors",
    "read_metrics",
    "read_results",
    "read_rows",
    "read_table",
    "rendered_prompt",
]


def is_running(job_dir: Path) -> bool:
    """Whether some process writes this job now."""
    return holder(job_dir) is not None


def read_results(job_dir: str | Path) -> Iterator[ResultRecord]:
    """Every finished row once, in the order of rows, failed ones too; a success wins."""
    job_dir, _, index = _opened(job_dir)
    with RecordReader(job_dir) as reader:
        for position in index.positions():
            yield reader.read(position)


def read_errors(job_dir: str | Path) -> Iterator[ResultRecord]:
    """The rows that failed and did not succeed since."""
    return (record for record in read_results(job_dir) if record.failed)


def read_metrics(job_dir: str | Path) -> Iterator[dict[str, Any]]:
    """The engine's lines, one a second; a line that a kill has cut is left out."""
    path = job_dir_of(job_dir) / METRICS
    if not path.exists():
        return
    for line in bounded_lines(path, _LONGEST_METRICS):
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            yield found


def read_rows(job: str | Path) -> Iterator[dict[str, Any]]:
    """The job's table row by row, as dicts."""
    job_dir, manifest, index = _opened(job)
    columns = ResultColumns(manifest)
    for values, record in joined(job_dir, manifest, index):
        yield {**values, **columns.values(record)}


def read_batches(job: str | Path) -> Iterator[RecordBatch]:
    """The job's table as Arrow batches of one schema."""
    from quire.jobs.output.arrow_table import batches

    job_dir, manifest, index = _opened(job)
    _, found = batches(job_dir, manifest, index)
    return found


def read_table(job: str | Path) -> Table:
    """The job's table as one pyarrow Table, for a job that fits in memory."""
    import pyarrow as pa

    from quire.jobs.output.arrow_table import batches

    job_dir, manifest, index = _opened(job)
    schema, found = batches(job_dir, manifest, index)
    return pa.Table.from_batches(found, schema)


def _opened(job: str | Path) -> tuple[Path, Manifest, ResultIndex]:
    job_dir = job_dir_of(job)
    manifest = Manifest.load(job_dir)
    return job_dir, manifest, index_of(job_dir, manifest)
