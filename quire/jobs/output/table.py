"""A job's table: every row of the input that has a result, with the columns that the job adds.

Reads what is on disk and no more, so it also shows a job that still runs. pyarrow is imported by
`read_batches` and `read_table` alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.jobs.output.columns import ResultColumns
from quire.jobs.output.joined import joined
from quire.jobs.store.manifest import Manifest
from quire.jobs.store.place import job_dir_of
from quire.jobs.store.segments import ResultIndex, index_of

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Table


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
