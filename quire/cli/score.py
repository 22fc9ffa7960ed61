"""`quire score`: judge stored answers, without a model unless a model is the judge."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.cli import job_options as o
from quire.cli.paths import named, path
from quire.cli.tables import score_facts, score_table
from quire.cli.terminal import say, say_json
from quire.errors import Interrupted, InvalidOption, JobStopped

if TYPE_CHECKING:
    from quire.evals.scoring.judge import JudgeScorer
    from quire.evals.scoring.scores import MetricScore
    from quire.jobs.output.results import StoredRun

_JUDGE = "judge"


def score(
    run: Annotated[str, typer.Argument(help="An OUTPUT, a job directory, or any table.")],
    by: Annotated[
        list[str],
        typer.Option(
            help="A scorer, repeatable: exact, normalised, regex, number, choice, acc, acc_norm, "
            "f1, json, FILE.py:FUNCTION, judge."
        ),
    ],
    truth: Annotated[str | None, typer.Option(help="The column with the right answers.")] = None,
    extract: Annotated[str | None, typer.Option(help="Regular expression to read with.")] = None,
    last: Annotated[bool, typer.Option("--last", help="Its last match, not its first.")] = False,
    choices: Annotated[str | None, typer.Option(help="For choice: their column.")] = None,
    schema: Annotated[
        Path | None, typer.Option(help="For json: a file with a schema.", parser=path)
    ] = None,
    group: Annotated[list[str] | None, typer.Option(help="Break down by this column.")] = None,
    pass_at: Annotated[list[int] | None, typer.Option(help="The k of a pass@k.")] = None,
    skip_failed: Annotated[
        bool, typer.Option("--skip-failed", help="Leave failed rows out; else they score 0.")
    ] = False,
    output_column: Annotated[str | None, typer.Option(help="Of a table: the answers.")] = None,
    judge_model: Annotated[
        str | None, typer.Option(help="The model that judges.", callback=named)
    ] = None,
    judge_prompt: Annotated[
        str | None, typer.Option(help="Jinja over prompt, answer, truth, row and words.")
    ] = None,
    judge_words: Annotated[str, typer.Option(help="What the judge may say.")] = "yes,no",
    judge_option: Annotated[
        list[str] | None, typer.Option(help="Engine option of the judge: NAME=VALUE.")
    ] = None,
    judge_tensor_parallel_size: o.JudgeRanks = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Score what a run has stored, and keep the scores beside it."""
    from quire.evals.scoring.named import ScorerOptions, scorers_by_name
    from quire.evals.scoring.scores import ScoreOptions
    from quire.evals.scoring.scores import score as make_scores
    from quire.jobs.output.results import StoredRun

    stored = StoredRun.open(run, output_column=output_column)
    options = ScorerOptions(extract=extract, last=last, choices=choices, schema=schema)
    scorers = scorers_by_name([name for name in by if name != _JUDGE], options)
    if _JUDGE in by:
        ranks = {"tensor_parallel_size": judge_tensor_parallel_size}
        asked = o.engine_options(judge_option, "judge-option", **ranks)
        scorers.append(_judged(stored, judge_model, judge_prompt, judge_words, asked, truth))
    columns, ks = tuple(group or ()), tuple(pass_at or ())
    scores = make_scores(stored, scorers, ScoreOptions(truth, columns, ks, skip_failed))
    if as_json:
        say_json({"run": run, "metrics": score_facts(scores)})
    else:
        _tell(stored.name, scores, skip_failed=skip_failed)


def _tell(name: str, scores: list[MetricScore], *, skip_failed: bool) -> None:
    say(score_table(name, scores))
    for found in scores:
        if found.num_failed and not skip_failed:
            say(f"{found.metric}: {found.num_failed:,} failed rows count as 0", err=True)
        if found.num_unscored:
            say(
                f"{found.metric}: {found.num_unscored:,} rows have no score; {found.first_problem}",
                err=True,
            )


def _judged(
    run: StoredRun,
    model: str | None,
    prompt: str | None,
    words: str,
    options: dict[str, Any],
    truth: str | None,
) -> JudgeScorer:
    from quire.evals.scoring.judge import DEFAULT_PROMPT, JudgeOptions, judge

    if model is None:
        raise InvalidOption("--by judge needs --judge-model", parameter="judge_model")
    asked = JudgeOptions(
        model=model,
        prompt=prompt or DEFAULT_PROMPT,
        words=tuple(word.strip() for word in words.split(",")),
        options=options,
    )
    try:
        return judge(run, asked, truth=truth, command=["quire", *sys.argv[1:]])
    except Interrupted as stopped:  # as a KeyboardInterrupt it would end in silence
        raise JobStopped(str(stopped)) from None
