"""Where a job lives: beside its OUTPUT, or in the directory it was given."""

from __future__ import annotations

from pathlib import Path

from quire.errors import InvalidOption
from quire.jobs.manifest import NAME as MANIFEST

SUFFIX = ".quire"


def job_dir_for(output: Path) -> Path:
    """The directory that the job of this output has unless it is given another."""
    return output.with_name(output.name + SUFFIX)


def job_dir_of(path: str | Path) -> Path:
    """The job directory of an OUTPUT, or the directory itself."""
    path = Path(path)
    beside = job_dir_for(path)
    for directory in (path, beside):
        if (directory / MANIFEST).is_file():
            return directory
    raise InvalidOption(
        f"there is no job at {path}: neither {path / MANIFEST} nor {beside / MANIFEST} exists. "
        "Give the OUTPUT of a `quire run`, or its job directory.",
        parameter="job",
        value=str(path),
    )
