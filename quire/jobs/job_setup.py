"""How a job begins or continues: its directory, its input files and its manifest."""

from __future__ import annotations

import json
import os
import re
import secrets as randomness
import shutil
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from quire.base.version import __version__
from quire.errors import CorruptJob, InvalidOption, JobChanged
from quire.jobs.adapters import digests
from quire.jobs.input.files import InputFile, find_files, read_rows
from quire.jobs.input.media import media_folder
from quire.jobs.input.rows import BadRow
from quire.jobs.input.spool import NAME as SPOOLED
from quire.jobs.input.spool import Spool
from quire.jobs.input.templates import RowTemplate
from quire.jobs.options import STDIN, JobOptions
from quire.jobs.output.columns import ResultColumns
from quire.jobs.output.output import output_format
from quire.jobs.refusals import is_own_file, refuse_folder, refuse_input_folder, refuse_links
from quire.jobs.store.durable import PARTIAL, make_directory, sync_directory
from quire.jobs.store.lock import NAME as LOCK
from quire.jobs.store.lock import JobLock
from quire.jobs.store.manifest import NAME, Manifest
from quire.jobs.store.place import SUFFIX, give_up_stale_claim, job_dir_for, refuse_second_job
from quire.jobs.store.segments import last_epoch
from quire.jobs.store.stamps import MODEL_FILES, FileStamp
from quire.jobs.transcripts import transcript_format

PROBE = ".probe-"  # prefix of the files that test a disk


def job_directory(options: JobOptions) -> Path:
    """The job's directory, made if need be; an OUTPUT that no job wrote is not overwritten."""
    output = Path(options.output)
    job_dir = Path(options.job) if options.job else job_dir_for(output)
    refuse_folder(output)
    refuse_input_folder(options)
    refuse_links(output, job_dir)
    refuse_second_job(output, job_dir)
    if not options.job:
        give_up_stale_claim(output)
    is_job = (job_dir / NAME).exists()
    if not is_job and os.path.lexists(output) and not options.overwrite:
        raise InvalidOption(
            f"{output} exists, and there is no job beside it ({job_dir}). Give another OUTPUT, or "
            "--overwrite to replace it.",
            parameter="output",
            value=options.output,
        )
    if job_dir.exists() and not is_job and any(job_dir.iterdir()) and not _is_only_begun(job_dir):
        raise InvalidOption(
            f"{job_dir} exists and is no job: it has no {NAME}. Give another one.",
            parameter="job",
            value=str(job_dir),
        )
    make_directory(job_dir)
    return job_dir


def remove_empty_job(job_dir: Path) -> None:
    """Remove a directory in which no job was begun, with only the lock file in it. The lock is
    still held: a process that waits for it finds the file gone, and makes the directory again."""
    if job_dir.is_dir() and [path.name for path in job_dir.iterdir()] == [LOCK]:
        (job_dir / LOCK).unlink()
        job_dir.rmdir()


def _is_only_begun(job_dir: Path) -> bool:
    """Whether a job was killed here before it had written a manifest."""
    ours = {LOCK, NAME + PARTIAL}
    return all(
        p.name in ours or p.name.startswith(PROBE) or _is_spooled(p) for p in job_dir.iterdir()
    )


def _is_spooled(path: Path) -> bool:
    return re.fullmatch(rf"{SPOOLED}({re.escape(PARTIAL)})?", path.name) is not None


def manifest_before(options: JobOptions, job_dir: Path) -> Manifest | None:
    """The manifest on disk; None if there is none, or with --overwrite."""
    if options.overwrite or not (job_dir / NAME).exists():
        return None
    return Manifest.load(job_dir)


def is_finished(before: Manifest, now: Manifest, options: JobOptions) -> bool:
    """Whether the job is finished, its output is there, and no rows are to be tried again."""
    same = before.status == "finished" and before.first_epoch == now.first_epoch
    return same and not options.retry_failed and Path(now.output).exists()


def check_model(manifest: Manifest, found: Mapping[str, Sequence[FileStamp]]) -> None:
    """Raise JobChanged if the job has answers of a model with other files than these."""
    differences, _ = manifest.differences(manifest.changed(**found))
    if differences:
        listed = "\n  ".join(differences)
        raise JobChanged(
            f"the model is not the one this job began with:\n  {listed}\nPass --overwrite to "
            "begin again, or give another OUTPUT."
        )


def check_model_on_disk(manifest: Manifest) -> None:
    """The same check for a finished job, which starts no engine; the model may be deleted."""

    def now(file: FileStamp) -> FileStamp:
        path = Path(file.path)
        return FileStamp.of(path) if path.exists() else file

    check_model(manifest, {name: tuple(map(now, getattr(manifest, name))) for name in MODEL_FILES})


def check_output(manifest: Manifest, output: Path) -> None:
    """Raise JobChanged if the output of a finished job is not what it wrote."""
    written = manifest.output_file
    if written is None or written.same_as(found := FileStamp.of(output)):
        return
    raise JobChanged(
        f"{output} is not what this finished job wrote ({written.described} -> "
        f"{found.hashed().described}). Move it away, and the same command writes it again from the "
        "answers that are kept."
    )


def remove_old_files(job_dir: Path, files: Sequence[InputFile]) -> None:
    """Remove the files of the earlier job, except the lock and newly spooled rows; files that no
    job makes stay. The manifest is removed last: wherever this is killed, the same command can
    begin again with what is left."""
    spooled = {file.path.resolve() for file in files}
    for path in job_dir.iterdir():
        if path.name in (LOCK, NAME) or path.resolve() in spooled:
            continue
        if not is_own_file(path.name) and not _is_judges(path):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    sync_directory(job_dir)
    (job_dir / NAME).unlink(missing_ok=True)
    sync_directory(job_dir)


def _is_judges(path: Path) -> bool:
    """Whether this belongs to a judge's job, which scores the answers of this one."""
    home = path if path.suffix == SUFFIX else job_dir_for(path)
    return (home / NAME).is_file()


def input_files(options: JobOptions, job_dir: Path) -> list[InputFile]:
    """The files of the input; rows from stdin or a program are written to the job directory."""
    if options.rows is None and STDIN not in options.input:
        return find_files(options.input, options.format)
    keep = not options.overwrite and not options.reuse and last_epoch(job_dir) > 0
    spool = Spool(job_dir, _spooled_before(job_dir), keep)
    if options.rows is not None:
        return find_files([str(spool.rows(options.rows))])
    if options.input != (STDIN,):
        raise InvalidOption("stdin is the only input or none of them", parameter="input")
    if sys.stdin is None:  # the process was started with stdin closed
        raise InvalidOption("stdin is closed; pipe the rows in, or name a file", parameter="input")
    path = spool.stream(sys.stdin.buffer, options.format or "jsonl")
    return find_files([str(path)], options.format)


def _spooled_before(job_dir: Path) -> Path | None:
    """The spooled rows of the job on disk, also of one that was killed before it had a manifest."""
    found = sorted(path for path in job_dir.iterdir() if re.fullmatch(SPOOLED, path.name))
    if (named := _names_read(job_dir)) is not None:
        found = [path for path in found if path.name in named]
    return found[0] if found else None


def drop_refused(options: JobOptions, job_dir: Path, files: Sequence[InputFile]) -> None:
    """Remove newly spooled rows if the manifest on disk still names other ones."""
    if options.rows is None and STDIN not in options.input:
        return
    named = _names_read(job_dir)
    for file in files:
        if named is not None and file.path.name not in named:
            file.path.unlink(missing_ok=True)


def _names_read(job_dir: Path) -> set[str] | None:
    """The names of the input files of the job on disk; None if there is no manifest."""
    try:
        return {Path(file.path).name for file in Manifest.load(job_dir).inputs}
    except (FileNotFoundError, CorruptJob):
        return None


def manifest_of(
    options: JobOptions, files: Sequence[InputFile], command: Sequence[str]
) -> Manifest:
    """The manifest of this job, as far as it is known before an engine has started."""
    output = Path(options.output).absolute()
    as_written = options.kept()
    known_by_content = {
        "few_shot": _few_shot(options),
        "lora": digests(options.lora, options.options),
        "chat": options.chat if options.kind in ("generate", "choices") else False,
    }
    manifest = Manifest(
        **{**as_written, **known_by_content},
        version=__version__,
        id=randomness.token_hex(8),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=tuple(command),
        kind=options.kind,
        inputs=tuple(FileStamp.of(file.path.absolute()) for file in files),
        sampling={} if options.settings else _plain(options.sampling_settings()[0].params),
        settings=tuple(
            _plain({"name": setting.name, **setting.params})
            for setting in options.sampling_settings()
            if setting.name is not None
        ),
        model=options.model,
        tokenizer=options.options.get("tokenizer"),
        options=_plain({**_media_folder(options, files), **options.options}),
        output=str(output),
        output_format=_output_format(options.kind, output),
    )
    return manifest if options.batch else manifest.changed(columns=ResultColumns(manifest).names)


def _output_format(kind: str, output: Path) -> str:
    if kind == "batch":
        return "batch"
    return transcript_format(output) if kind == "transcribe" else output_format(output)


def _media_folder(options: JobOptions, files: Sequence[InputFile]) -> dict[str, str]:
    """The option that lets the engine read media in the input's folder; the user's own wins."""
    if not options.media_columns():
        return {}
    return {"allowed_local_media_path": str(media_folder(files))}


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values as a manifest on disk has them, for comparison: a tuple is a list in JSON."""
    found: dict[str, Any] = json.loads(json.dumps(dict(values)))
    return found


def _few_shot(options: JobOptions) -> tuple[tuple[str, str], ...]:
    """The examples of the few-shot file: the rendered prompt of each row, and its answer."""
    if options.few_shot is None or options.prompt is None:
        return ()
    template, examples = RowTemplate(options.prompt, "--prompt"), []
    for row in read_rows(find_files([options.few_shot])):
        try:
            if row.error is not None or row.values is None:
                raise row.error or BadRow("malformed_row", "it cannot be read")
            if options.few_shot_answer not in row.values:
                raise BadRow("missing_column", f"it has no column {options.few_shot_answer!r}")
            answer = str(row.values[options.few_shot_answer])
            examples.append((template.render(row.values), answer))
        except BadRow as bad:
            raise InvalidOption(
                f"row {row.number} of {options.few_shot} cannot be an example: {bad.message}",
                parameter="few_shot",
                value=options.few_shot,
            ) from None
    return tuple(examples)


def agreed(before: Manifest | None, now: Manifest, lock: JobLock, *, reuse: bool) -> Manifest:
    """The manifest to continue with; JobChanged if the job on disk is another one."""
    if before is None:
        return now.changed(first_epoch=lock.epoch)
    differences, about_every_row = before.differences(now)
    # To know whether an image, sound or video changed, each must be read: only with --reuse.
    names_files = bool(now.image or now.audio or now.video)
    if not differences and not (reuse and names_files):
        hashes = {old.path: old.sha256 for old in before.inputs}
        kept = before.changed(command=now.command, inputs=_with_hashes(now.inputs, hashes))
        return kept.changed(status="running", output=now.output)
    if not reuse and not before.join and last_epoch(lock.job_dir) == 0:
        # Nothing was answered yet: usually the engine refused an option, which was corrected now.
        return now.changed(first_epoch=lock.epoch)
    if not reuse:
        listed = "\n  ".join(differences)
        raise JobChanged(
            f"the job on disk is another one:\n  {listed}\nPass --reuse to keep the rows whose "
            "content is unchanged, --overwrite to begin again, or give another OUTPUT."
        )
    # The lock file has the epoch too, but a power cut may have emptied it.
    lock.raise_to(last_epoch(lock.job_dir) + 1)
    reuse_from = before.first_epoch if before.reuse_from is None else before.reuse_from
    return now.changed(
        id=before.id,
        first_epoch=lock.epoch,
        reuse_from=None if about_every_row else reuse_from,
        model_files=before.model_files if before.model == now.model else (),
        tokenizer_files=before.tokenizer_files if before.model == now.model else (),
        arithmetic={} if about_every_row else before.arithmetic,
    )


def _with_hashes(
    inputs: tuple[FileStamp, ...], hashes: dict[str, str | None]
) -> tuple[FileStamp, ...]:
    """The files as they are now, with the earlier hashes of those that are unchanged."""
    return tuple(
        FileStamp(file.path, file.size, file.stamp, hashes.get(file.path)) for file in inputs
    )
