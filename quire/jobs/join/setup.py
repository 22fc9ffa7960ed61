"""How a joined job begins: a manifest that all workers agree on, and a check of the disk."""

from __future__ import annotations

import os
import secrets as randomness
import time
from collections.abc import Sequence
from pathlib import Path

from quire.errors import InvalidOption, JobChanged, JobLocked
from quire.jobs import job_setup
from quire.jobs.first_rows import check_first_rows
from quire.jobs.input.files import InputFile
from quire.jobs.join.chunks import NAME as CHUNKS
from quire.jobs.join.chunks import ROWS, Chunks
from quire.jobs.options import JobOptions
from quire.jobs.refusals import refuse_written_input
from quire.jobs.store.durable import make_directory
from quire.jobs.store.lock import JobLock
from quire.jobs.store.manifest import NAME as MANIFEST
from quire.jobs.store.manifest import Manifest
from quire.jobs.store.place import claim
from quire.jobs.store.stamps import FileStamp

LOCK_PATIENCE = 600.0  # seconds that another worker may take to cut the input
LOOK_SECONDS = 1.0  # between two checks of the other workers


def refuse_what_cannot_join(options: JobOptions) -> None:
    """Refuse options that need all rows in one process, and input that can be read only once."""
    wrong = {
        "rows": options.rows is not None,
        "input": "-" in options.input,
        "id": options.id is not None,
        "shard": options.shard is not None,
        "limit": options.limit is not None and options.where is not None,
        "overwrite": options.overwrite,
        "reuse": options.reuse,
        "retry_failed": options.retry_failed,
        "batch": options.batch,
        "ray": options.ray is not None,
    }
    for name, given in wrong.items():
        if given:
            raise InvalidOption(
                f"--join and {name} do not go together: workers see a part of the rows each, of "
                "files that all of them can read. Leave one of them out.",
                parameter="join",
                value=name,
            )


def locked(job_dir: Path) -> JobLock:
    """The lock of the whole job, held while it is set up or merged."""
    deadline = time.monotonic() + LOCK_PATIENCE
    while True:
        try:
            make_directory(job_dir)
            return JobLock.take(job_dir)
        except JobLocked:
            if time.monotonic() > deadline:
                raise
            time.sleep(LOOK_SECONDS / 4)


def agreed(
    options: JobOptions, command: Sequence[str], job_dir: Path
) -> tuple[Manifest, list[InputFile], Chunks]:
    """The manifest of the job: written by the first worker, compared by all others."""
    files = job_setup.input_files(options, job_dir)
    refuse_written_input(options, job_dir, files)
    now = job_setup.manifest_of(options, files, command)
    if (job_dir / MANIFEST).exists() and (job_dir / CHUNKS).exists():
        before = Manifest.load(job_dir)
        inputs = tuple(_known(*each) for each in zip(before.inputs, now.inputs, strict=False))
        same_count = len(before.inputs) == len(now.inputs)
        differences, _ = before.differences(
            now.changed(inputs=inputs if same_count else now.inputs)
        )
        if differences:
            listed = "\n  ".join(differences)
            raise JobChanged(
                f"the job on disk is another one:\n  {listed}\nGive another OUTPUT, or the command "
                "of the other workers."
            )
        return before, files, Chunks.load(job_dir)
    if (job_dir / MANIFEST).exists() and not Manifest.load(job_dir).join:
        raise JobChanged(
            f"{job_dir} is a job without --join. Go on with it as it was begun, or give another "
            "OUTPUT."
        )
    check_exclusive(job_dir)
    check_first_rows(options, now, files)
    now.save(job_dir)
    claim(Path(now.output), job_dir)
    chunks = Chunks.cut(files, options.limit, ROWS)
    chunks.save(job_dir)
    return now, files, chunks


def _known(before: FileStamp, now: FileStamp) -> FileStamp:
    """The first worker's stamp if size and time of change agree, else this one. Machines see
    different device and inode numbers for one file."""
    times = (before.stamp.split(":")[2:3], now.stamp.split(":")[2:3])
    return before if before.size == now.size and times[0] == times[1] else now


def check_exclusive(job_dir: Path) -> None:
    """Refuse a disk where two workers could both make the same file."""
    probe = job_dir / f"{job_setup.PROBE}{randomness.token_hex(8)}"
    other = probe.with_name(probe.name + ".2")
    try:
        probe.write_bytes(b"")
        os.link(probe, other)
        try:
            os.link(probe, other)
        except FileExistsError:
            return
        raise OSError("a name was made twice")
    except OSError as error:
        raise InvalidOption(
            f"--join needs a disk on which a file is made by one worker alone, and {job_dir} is on "
            f"one where that fails ({error}). Use a local disk, NFS or a parallel file system, or "
            "--shard i/n with an OUTPUT for each.",
            parameter="join",
        ) from error
    finally:
        probe.unlink(missing_ok=True)
        other.unlink(missing_ok=True)
