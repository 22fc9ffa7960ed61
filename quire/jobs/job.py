"""Job: a table in, every result out. Python's twin of `quire run`."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any

from quire.errors import InvalidOption, ModelError
from quire.inputs.transcript_params import PARAMS
from quire.jobs import job_setup
from quire.jobs.adapters import parse_lora
from quire.jobs.first_rows import check_first_rows
from quire.jobs.input.sounds import MOST_PIECE, sound_files, sound_rows
from quire.jobs.input.work import Work, WorkRow
from quire.jobs.job_parts import make_work, opening_message
from quire.jobs.job_run import JobReport, run_job
from quire.jobs.join.worker import join_job
from quire.jobs.options import JobOptions, as_tuple, parse_shard
from quire.jobs.run_options import ENGINE_FLAGS, with_flags
from quire.jobs.supervise.rows_ahead import RowsAhead
from quire.jobs.supervise.supervisor import COMMAND
from quire.jobs.transcripts import check_alone
from quire.jobs.vectors import COLUMN
from quire.replicas.engine_process import EngineProcess, described
from quire.sampling_params import SamplingParams

__all__ = ["Job", "JobReport"]

PLANNED_ROWS = 65_536


class Job:
    """A table whose rows a model answers. Kill it at any point and run it again: it continues.

    >>> report = Job("reviews.csv", "labels.jsonl", model="smollm2",
    ...              prompt="Sentiment of: {{ text }}", choice=["positive", "negative"]).run()

    `input` is a path or several, rows as an iterable of dicts, or a table (pyarrow, polars, pandas,
    datasets). Every further option has the name and the meaning that it has for `quire run`
    (docs/jobs.md). Sampling parameters are passed by their own names, engine options in `options`.
    """

    def __init__(
        self,
        input: str | Path | Sequence[str | Path] | Iterable[Mapping[str, Any]],
        output: str | Path,
        *,
        model: str,
        command: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        self.options = make_options(input, output, model, options)
        self._command = tuple(sys.argv if command is None else command)
        self._engine_command: Sequence[str] = COMMAND

    def run(self, *, progress: bool = True) -> JobReport:
        """Begin or continue the job, until every row has its result.

        Raises JobChanged, JobLocked or an OSError if it cannot begin, JobStopped if it had to stop,
        and Interrupted at Ctrl-C; after the last two, run it again to continue.
        """
        run = join_job if self.options.join else run_job
        return run(self.options, self._command, engine_command=self._engine_command, show=progress)

    def plan(self) -> str:
        """What the job would take, in words, after a short probe; nothing is kept."""
        return plan_job(self.options, engine_command=self._engine_command)


def make_options(input: Any, output: str | Path, model: str, given: dict[str, Any]) -> JobOptions:
    """Checks options as a caller writes them, and completes them with the defaults."""
    options = {
        name: _READ[name](value) if name in _READ else value
        for name, value in given.items()
        if value is not None
    }
    params = set(SamplingParams.__struct_fields__) - {"seed"}
    sampling = dict(options.pop("sampling", {}))
    sampling |= {name: options.pop(name) for name in params & options.keys()}
    engine = with_flags(options.pop("options", {}), options)
    options = {name: value for name, value in options.items() if name not in ENGINE_FLAGS}
    options["options"] = engine
    if options.get("embed"):
        options.setdefault("output_column", COLUMN)
    if options.get("transcribe"):
        sampling |= {name: options.pop(name) for name in PARAMS if name in options}
        sounds = sound_files(_input(input).get("input", ()))
        check_alone(Path(output), len(sounds))
        input = sound_rows(sounds, options.pop("seconds", MOST_PIECE))
    options |= _input(input)
    try:
        return JobOptions(output=str(output), model=str(model), sampling=sampling, **options)
    except TypeError:
        known = {each.name for each in fields(JobOptions)}
        strange = sorted(options.keys() - known)
        if not strange:
            raise
        raise InvalidOption(
            f"a job has no option {strange[0]!r}; docs/jobs.md lists them, and engine options go "
            "into options={...}",
            parameter=strange[0],
        ) from None


def _path_as_text(given: Any) -> Any:
    return str(given) if isinstance(given, Path) else given


# Options that callers may write in more than one way, and how each is read.
_READ: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("choice", "settings", "image", "audio", "video"), as_tuple),
    **dict.fromkeys(("grammar", "few_shot", "job"), _path_as_text),
    "schema": lambda given: json.dumps(given) if isinstance(given, dict) else _path_as_text(given),
    "continuations": lambda given: tuple(given) if isinstance(given, list) else given,
    "shard": lambda given: parse_shard(given) if isinstance(given, str) else given,
    "lora": parse_lora,
}


def _input(given: Any) -> dict[str, Any]:
    several = [given] if isinstance(given, str | Path) else given
    if isinstance(several, Sequence) and several and all(_is_name(each) for each in several):
        if "" in several:  # a shell's variable that is not set
            raise InvalidOption(
                "input is the name of a file or a folder, and one is empty. The present folder is "
                "written as a dot.",
                parameter="input",
                value=given,
            )
        return {"input": tuple(str(each) for each in several)}
    if isinstance(given, Iterable) or hasattr(given, "__arrow_c_stream__"):
        return {"rows": given}
    raise InvalidOption(
        f"input is a path, several paths, rows as dicts or a table, not a {type(given).__name__}",
        parameter="input",
    )


def _is_name(given: Any) -> bool:
    return isinstance(given, str | Path)


def plan_job(options: JobOptions, *, engine_command: Sequence[str] = COMMAND) -> str:
    """The plan in words. A few rows are run to measure the machine; nothing is kept."""
    with tempfile.TemporaryDirectory(prefix="quire-plan-") as scratch:
        files = job_setup.input_files(options, Path(scratch))
        manifest = job_setup.manifest_of(options, files, ())
        check_first_rows(options, manifest, files)
        opening = opening_message(manifest, options)
        engine = EngineProcess(opening, command=engine_command, hear=lambda line: None)
        try:
            work = make_work(options, manifest, files, ())
            rows, num_bad = _planned_rows(work)
            lines = [f"Job\n  rows       {work.num_rows:,} in {len(files)} file(s)"]
            if num_bad:
                lines.append(f"  bad rows   {num_bad:,}, each of which costs itself")
            if work.num_rows > len(rows) + num_bad:
                lines.append(f"  planned    the first {len(rows):,}")
            return "\n".join([*lines, _planned(engine, rows)])
        finally:
            engine.end()


def _planned_rows(work: Work) -> tuple[list[WorkRow], int]:
    """The rows to plan, and how many of all cannot be asked."""
    rows, num_bad = list[WorkRow](), 0
    with closing(RowsAhead(work.rows(), work.evaluation_limit)) as ahead:
        for row in ahead.wait():
            if row.error is not None:
                num_bad += 1
            elif len(rows) < PLANNED_ROWS:
                rows.append(row)
    return rows, num_bad


def _planned(engine: EngineProcess, rows: list[WorkRow]) -> str:
    if not rows:
        return "  nothing to run"
    asked = [{"row": row.row, **row.asked} for row in rows]
    engine.send({"kind": "rows", "rows": asked, "plan": True})
    engine.send({"kind": "end"})
    while not engine.ended:
        for message in engine.poll(1.0):
            if message["kind"] == "plan":
                return str(message["text"])
            if message["kind"] == "failed":
                raise ModelError(message["error"])
    raise ModelError(
        f"the engine {described(engine.end())} while it planned:\n{engine.stderr_tail}"
    )
