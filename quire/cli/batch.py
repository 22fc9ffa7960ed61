"""`quire batch`: OpenAI batch files in and out, with the journal of a job."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from quire.cli import job_options as o
from quire.cli.run import execute, made_of, parsed


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
    own = {"input": input, "output": output, "model": model, "batch": True, "id": "custom_id"}
    made = made_of({**parsed(written), **own}, "batch INPUT --model M -o OUTPUT")
    execute(made, as_json=as_json, quiet=quiet)
