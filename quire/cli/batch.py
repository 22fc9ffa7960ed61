"""`quire batch`: OpenAI batch files in and out, with the journal of a job."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from quire.cli import job_options as o
from quire.cli.run import execute


@o.takes(
    *("option", "tensor_parallel_size", "seed", "limit", "replicas", "gpus"),
    *("job", "overwrite", "reuse", "retry_failed"),
)
def batch(
    *,
    input: Annotated[
        str, typer.Argument(help="Lines for /v1/chat/completions or /v1/completions.")
    ],
    output: Annotated[str, typer.Option("--output", "-o", help="A .jsonl file.")],
    model: Annotated[str, typer.Option("--model", "-m", help="What answers every line.")],
    as_json: o.AsJson = False,
    quiet: o.Quiet = False,
    **written: Any,
) -> None:
    """Answer an OpenAI batch file; failed lines go to OUTPUT's .errors file."""
    from quire.jobs.job import Job

    options = o.assignments(written.pop("option") or [], "option")
    made = Job(
        input,
        output,
        model=model,
        batch=True,
        id="custom_id",
        options=options,
        command=["quire", *sys.argv[1:]],
        **written,
    )
    execute(made, as_json=as_json, quiet=quiet)
