"""Refuses to overwrite a job's own input, another job's files, or the target of a link."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from quire.errors import InvalidOption
from quire.jobs.input.files import InputFile
from quire.jobs.input.spool import NAME as SPOOLED
from quire.jobs.options import STDIN, JobOptions
from quire.jobs.output.results import StoredRun
from quire.jobs.store.durable import PARTIAL
from quire.jobs.store.manifest import NAME

_OWN_FILES = re.compile(
    rf"(lock|reserve|manifest\.json|chunks\.json|claims|workers|scores|scores\.json|metrics\.jsonl|errors\.jsonl"
    rf"|results-\d+\.jsonl|{SPOOLED})({re.escape(PARTIAL)})?"
)


def is_own_file(name: str) -> bool:
    """Whether a job may have made a file of this name in its directory."""
    return _OWN_FILES.fullmatch(name) is not None


def refuse_folder(output: Path) -> None:
    """Raise InvalidOption now, and not at the end of the run, if this file cannot be written."""
    if "\0" in str(output) or output.is_dir():
        what = "holds a NUL" if "\0" in str(output) else "is a folder"
        raise _refused(f"the output {str(output)!r} {what}; give the name of a file", str(output))


def refuse_links(output: Path, job_dir: Path) -> None:
    """Raise InvalidOption if the directory is a link, or the output one of a job's own files."""
    if job_dir.is_symlink():
        raise InvalidOption(
            f"{job_dir} is a link to {os.readlink(job_dir)}, and a job is written only where it "
            "was meant to be. If that is there, name the directory itself with --job.",
            parameter="job",
            value=str(job_dir),
        )
    if (output.parent / NAME).exists() and is_own_file(output.name):
        raise _refused(
            f"{output} is one of the files that the job in {output.parent} is made of; give "
            "another OUTPUT",
            str(output),
        )


def refuse_input_folder(options: JobOptions) -> None:
    """Refuse an output inside the input folder, with --overwrite too."""
    output = Path(options.output)
    for given in map(Path, options.input):
        if given.is_dir() and output.parent.is_dir() and given.samefile(output.parent):
            raise _refused(
                f"{output} lies in the INPUT folder, and would be read as input next time; give "
                "another OUTPUT",
                str(output),
            )


def refuse_written_input(options: JobOptions, job_dir: Path, files: Sequence[InputFile]) -> None:
    """Raise InvalidOption if the job would write over, or --overwrite would remove, something that
    it reads: rows, examples, a schema, a model."""
    output = Path(options.output)
    written = [output]
    if options.batch:
        from quire.jobs.batch import errors_path

        written.append(errors_path(output))
    written += [path.with_name(path.name + PARTIAL) for path in written]
    there = [path for path in written if path.exists()]
    is_spooled = options.rows is not None or STDIN in options.input  # for this run, so it stays
    others = (options.few_shot, options.schema, options.grammar, options.model)
    for given in (*(file.path for file in files), *map(Path, filter(None, others))):
        if any(os.path.exists(given) and given.samefile(path) for path in there):
            what = f"{given} is read by this job, and would be written over by its output {output}"
        elif options.overwrite and not is_spooled and _is_of_job(given, job_dir):
            what = f"{given} lies among the files of the job, which --overwrite removes"
        else:
            continue
        raise _refused(f"{what}; give another OUTPUT", str(output))


def refuse_over_run(run: StoredRun, target: Path) -> None:
    """Raise InvalidOption if a report or export of this run would overwrite a source of it: its
    input, its output, its table, or a file of its job."""
    made_of = [run.path]
    if run.manifest is not None:
        made_of += [Path(file.path) for file in run.manifest.inputs]
        made_of.append(Path(run.manifest.output))
    aside = target.with_name(target.name + PARTIAL)
    for path in made_of:
        if path.is_file() and any(_is_file(path, written) for written in (target, aside)):
            what = f"{target} would be written over {path}, which this run is made of"
            raise _refused(f"{what}; give another name", str(target))
    if _is_of_job(target, run.home):
        what = f"{target} is one of the files of the run's job"
        raise _refused(f"{what}; give another name", str(target))


def _refused(why: str, output: str) -> InvalidOption:
    return InvalidOption(why, parameter="output", value=output)


def _is_file(path: Path, written: Path) -> bool:
    return os.path.exists(written) and path.samefile(written)


def _is_of_job(given: Path, job_dir: Path) -> bool:
    inside = os.path.exists(given) and given.resolve().parent == job_dir.resolve()
    return inside and is_own_file(given.name)
