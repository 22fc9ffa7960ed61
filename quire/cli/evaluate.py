"""`quire eval`: named tasks, run as jobs and scored."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quire.cli import exits
from quire.cli import job_options as o
from quire.cli.paths import named, path
from quire.cli.tables import score_facts, score_table
from quire.cli.terminal import say, say_json
from quire.errors import Interrupted, InvalidOption, JobStopped

if TYPE_CHECKING:
    from quire.evals.tasks.evaluate import EvalReport


def evaluate(
    tasks: Annotated[
        list[str],
        typer.Argument(
            help="gsm8k, gsm8k_cot, mmlu, mmlu_SUBJECT, arc_easy, arc_challenge, hellaswag, "
            "humaneval."
        ),
    ],
    model: Annotated[
        str, typer.Option("--model", "-m", help="An alias, a path or a Hub id.", callback=named)
    ],
    limit: Annotated[
        int | None, typer.Option(help="So many questions of a task; of mmlu, shared out evenly.")
    ] = None,
    shots: Annotated[int | None, typer.Option(help="Examples before each question.")] = None,
    examples: Annotated[
        Path | None,
        typer.Option(help="For gsm8k: its training questions as JSON lines.", parser=path),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="[default: TASK-MODEL.jsonl]", parser=path)
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Of an answer.")] = None,
    seed: Annotated[int, typer.Option(help="Of the job.")] = 0,
    option: Annotated[list[str] | None, typer.Option(help="Engine option: NAME=VALUE.")] = None,
    tensor_parallel_size: o.Ranks = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Begin again.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run and score named tasks; run it again and it goes on."""
    from quire.evals.tasks.evaluate import EvalOptions
    from quire.evals.tasks.evaluate import evaluate as run_task

    if output is not None and len(tasks) > 1:
        raise InvalidOption("--output goes with one task; here: " + ", ".join(tasks))
    options = o.engine_options(option, tensor_parallel_size=tensor_parallel_size)
    reports = []
    for task in tasks:
        asked = EvalOptions(
            model=model,
            output=output,
            limit=limit,
            shots=shots,
            examples=examples,
            max_tokens=max_tokens,
            seed=seed,
            options=options,
            overwrite=overwrite,
        )
        try:
            reports.append(run_task(task, asked, ["quire", *sys.argv[1:]]))
        except Interrupted as stopped:  # as a KeyboardInterrupt it would end in silence
            raise JobStopped(str(stopped)) from None
        if not as_json:
            _tell(reports[-1])
    if as_json:
        say_json({report.task: _facts(report) for report in reports})
    if any(report.job.num_failed for report in reports):
        raise typer.Exit(exits.SOME_FAILED)


def _tell(report: EvalReport) -> None:
    if report.samples is not None:
        say(f"{report.task}: not scored. Samples for the official harness: {report.samples}")
        return
    say(score_table(report.task, report.scores, shots=report.shots))
    if report.shots:
        say(f"examples: {report.examples}", err=True)
    if report.job.num_failed:
        say(f"{report.job.num_failed:,} failed rows count as 0", err=True)
    say(f"results: {report.job.output} (quire report {report.job.output})", err=True)


def _facts(report: EvalReport) -> dict[str, object]:
    return {
        "output": str(report.job.output),
        "shots": report.shots,
        "rows": report.job.num_rows,
        "failed": report.job.num_failed,
        "metrics": score_facts(report.scores),
        "samples": str(report.samples) if report.samples else None,
    }
