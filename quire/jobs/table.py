"""A job's table: every row of the input that has a result, with the columns that the job adds.

Reads what is on disk and no more, so it also shows a job that still runs. pyarrow is imported by
`read_batches` and `read_table` alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.errors import JobChanged
from quire.jobs.columns import ResultColumns
from quire.jobs.input import files as input_files
from quire.jobs.input.files import InputFile, find_files
from quire.jobs.manifest import Manifest
from quire.jobs.place import job_dir_of
from quire.jobs.record import ResultRecord
from quire.jobs.segments import RecordReader, ResultIndex, scan
from quire.jobs.stamps import FileStamp

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Table


def job_files(job_dir: Path, manifest: Manifest) -> list[InputFile]:
    """The input files; what was spooled is found even if the job directory was moved. JobChanged
    where they are not what the job read: its results belong to those rows alone."""
    paths = []
    for file in manifest.inputs:
        moved = job_dir / Path(file.path).name
        path = Path(file.path) if Path(file.path).exists() or not moved.exists() else moved
        if not path.exists():
            raise JobChanged(
                f"the input {path} is gone, and the results in {job_dir} are of its rows. Put it "
                f"back; once finished, {manifest.output} has everything by itself."
            )
        now = FileStamp.of(path)
        if not file.same_as(now):
            raise JobChanged(
                f"the input {path} is not what this job read ({file.told} -> {now.told}), so the "
                f"results in {job_dir} are not of its rows. Put it back, or run the job again with "
                "--reuse."
            )
        paths.append(str(path))
    return find_files(paths, manifest.input_format)


def joined(
    job_dir: Path, manifest: Manifest, index: ResultIndex
) -> Iterator[tuple[Mapping[str, Any], ResultRecord]]:
    """Each work row that is done: the input row's values, and its record; in order."""
    width = max(1, len(manifest.settings))

    def has_result(number: int) -> bool:
        return any(number * width + i in index for i in range(width))

    with RecordReader(job_dir) as reader:
        for row in input_files.read_rows(job_files(job_dir, manifest), has_result):
            for work_row in range(row.number * width, row.number * width + width):
                position = index.position(work_row)
                if position is not None:
                    yield row.values or {}, reader.read(position)


def read_rows(job: str | Path) -> Iterator[dict[str, Any]]:
    """The job's table row by row, as dicts."""
    job_dir, manifest, index = _opened(job)
    columns = ResultColumns(manifest)
    for values, record in joined(job_dir, manifest, index):
        yield {**values, **columns.values(record)}


def read_batches(job: str | Path) -> Iterator[RecordBatch]:
    """The job's table as Arrow batches of one schema."""
    from quire.jobs.arrow_table import batches

    job_dir, manifest, index = _opened(job)
    _, found = batches(job_dir, manifest, index)
    return found


def read_table(job: str | Path) -> Table:
    """The job's table as one pyarrow Table, for a job that fits in memory."""
    import pyarrow as pa

    from quire.jobs.arrow_table import batches

    job_dir, manifest, index = _opened(job)
    schema, found = batches(job_dir, manifest, index)
    return pa.Table.from_batches(found, schema)


def _opened(job: str | Path) -> tuple[Path, Manifest, ResultIndex]:
    job_dir = job_dir_of(job)
    manifest = Manifest.load(job_dir)
    return job_dir, manifest, scan(job_dir, first_epoch=manifest.first_epoch).index


def all_arrow(files: Sequence[InputFile]) -> bool:
    return all(file.format == "arrow" for file in files)
