"""Where the directory of a job is: beside its OUTPUT, or where --job names it.

An OUTPUT has one job. If its directory is elsewhere, a small file in the usual place names it, so
that readers find it and a second job for the same OUTPUT is refused.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from quire.errors import CorruptJob, InvalidOption
from quire.jobs.store.bounded import read_bounded
from quire.jobs.store.durable import write_file
from quire.jobs.store.manifest import NAME as MANIFEST
from quire.jobs.store.manifest import Manifest

SUFFIX = ".quire"
_LONGEST_POINTER = 1 << 16  # bytes


def job_dir_for(output: Path) -> Path:
    """The usual job directory of this output."""
    return output.parent / f"{output.name}{SUFFIX}"  # "." and "/" are paths without a name


def job_dir_of(path: str | Path) -> Path:
    """The job directory of an OUTPUT, or the directory itself."""
    if path == "":
        raise InvalidOption(
            "the name of a run is empty. Give the OUTPUT of a `quire run`, or its job directory.",
            parameter="job",
            value=path,
        )
    path = Path(path)
    beside = job_dir_for(path)
    for directory in (path, beside):
        if (directory / MANIFEST).is_file():
            return directory
    if (elsewhere := _job_elsewhere(path)) is not None:
        return elsewhere
    raise InvalidOption(
        f"there is no job at {path}: neither {path / MANIFEST} nor {beside / MANIFEST} exists. "
        "Give the OUTPUT of a `quire run`, or its job directory.",
        parameter="job",
        value=str(path),
    )


def refuse_second_job(output: Path, job_dir: Path) -> None:
    """Raise InvalidOption if another directory than `job_dir` is the job of this output."""
    usual = job_dir_for(output)
    other = _job_elsewhere(output)
    if other is None and usual.is_dir():
        other = usual
    if other is None or _same(other, job_dir):
        return
    raise InvalidOption(
        f"{output} is the OUTPUT of another job, in {other}, and each would overwrite what the "
        f"other wrote. Give another OUTPUT, or go on with that job (--job {other}).",
        parameter="output",
        value=str(output),
    )


def claim(output: Path, job_dir: Path) -> None:
    """Write the file beside the output that names its job, unless the job is there itself."""
    usual = job_dir_for(output)
    if _same(usual, job_dir):
        return
    refuse_second_job(output, job_dir)
    if _job_elsewhere(output) is None:
        write_file(usual, json.dumps({"job": str(job_dir.absolute())}).encode() + b"\n")


def give_up_stale_claim(output: Path) -> None:
    """Remove the file that names the job if that job is gone, so that a directory can be made in
    the file's place."""
    usual = job_dir_for(output)
    if usual.is_file() and not usual.is_symlink() and _pointed_at(usual) is not None:
        usual.unlink()


def _job_elsewhere(output: Path) -> Path | None:
    """The job that a file beside the output names, if that job names the same output. So a forged
    file cannot lead to another job."""
    found = _pointed_at(job_dir_for(output))
    if found is None:
        return None
    try:
        named = Path(Manifest.load(found).output)
    except (OSError, CorruptJob):
        return None
    is_ours = named.name == output.name and _same(named.parent, output.absolute().parent)
    return found if is_ours else None


def _pointed_at(pointer: Path) -> Path | None:
    try:
        found = json.loads(read_bounded(pointer, _LONGEST_POINTER))
        return Path(found["job"])
    except (OSError, CorruptJob, ValueError, TypeError, KeyError, RecursionError):
        return None


def _same(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return one.absolute() == other.absolute()
