"""`quire batch`: OpenAI batch files in and out, with the journal of a job."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from quire.cli import job_options as o
from quire.cli.run import assignments, execute


def batch(
    input: Annotated[
        str, typer.Argument(help="Lines for /v1/chat/completions or /v1/completions.")
    ],
    output: Annotated[str, typer.Option("--output", "-o", help="A .jsonl file.")],
    model: Annotated[str, typer.Option("--model", "-m", help="What answers every line.")],
    option: o.Option = None,
    seed: o.Seed = None,
    limit: o.Limit = None,
    job: o.JobDir = None,
    overwrite: o.Overwrite = False,
    reuse: o.Reuse = False,
    retry_failed: o.RetryFailed = False,
    as_json: o.AsJson = False,
    quiet: o.Quiet = False,
) -> None:
    """Answer an OpenAI batch file; failed lines go to OUTPUT's .errors file."""
    from quire.jobs.job import Job

    made = Job(
        input,
        output,
        model=model,
        batch=True,
        id="custom_id",
        seed=seed,
        limit=limit,
        job=job,
        overwrite=overwrite,
        reuse=reuse,
        retry_failed=retry_failed,
        options=assignments(option or [], "option"),
        command=["quire", *sys.argv[1:]],
    )
    execute(made, as_json=as_json, quiet=quiet)
