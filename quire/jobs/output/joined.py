"""The rows of a job's input, each beside the record of its answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from quire.errors import JobChanged
from quire.jobs.input import files as input_files
from quire.jobs.input.files import InputFile, find_files
from quire.jobs.store.manifest import Manifest
from quire.jobs.store.record import ResultRecord
from quire.jobs.store.segments import RecordReader, ResultIndex
from quire.jobs.store.stamps import FileStamp


def job_files(job_dir: Path, manifest: Manifest) -> list[InputFile]:
    """The input files; spooled ones are found even if the job directory was moved. JobChanged if a
    file is no longer what the job read, since the results belong to the old rows."""
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
                f"the input {path} is not what this job read ({file.described} -> "
                f"{now.described}), so the results in {job_dir} are not of its rows. Put it back, "
                "or run the job again with --reuse."
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
