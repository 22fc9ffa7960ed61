"""`--plan`: what a job would take, from a short probe, before it is begun."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from quire.errors import ModelError
from quire.jobs import job_setup as beginning
from quire.jobs.first_rows import check_first_rows
from quire.jobs.input.work import Work, WorkRow
from quire.jobs.job_parts import make_work, opening_message
from quire.jobs.options import JobOptions
from quire.jobs.supervise.ahead import Ahead
from quire.jobs.supervise.supervisor import COMMAND
from quire.replicas.engine_process import EngineProcess, described

PLANNED_ROWS = 65_536


def plan_job(options: JobOptions, *, engine_command: Sequence[str] = COMMAND) -> str:
    """The plan in words. A few rows are run to measure the machine; nothing is kept."""
    with tempfile.TemporaryDirectory(prefix="quire-plan-") as aside:
        files = beginning.input_files(options, Path(aside))
        manifest = beginning.manifest_of(options, files, ())
        check_first_rows(options, manifest, files)
        opening = opening_message(manifest, options)
        engine = EngineProcess(opening, command=engine_command, hear=lambda line: None)
        try:
            work = make_work(options, manifest, files, ())
            rows, num_bad = _read(work)
            lines = [f"Job\n  rows       {work.num_rows:,} in {len(files)} file(s)"]
            if num_bad:
                lines.append(f"  bad rows   {num_bad:,}, each of which costs itself")
            if work.num_rows > len(rows) + num_bad:
                lines.append(f"  planned    the first {len(rows):,}")
            return "\n".join([*lines, _planned(engine, rows)])
        finally:
            engine.end()


def _read(work: Work) -> tuple[list[WorkRow], int]:
    """The rows to plan, and how many of all cannot be asked."""
    rows, num_bad = list[WorkRow](), 0
    with closing(Ahead(work.rows(), work.patience)) as ahead:
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
