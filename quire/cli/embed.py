"""`quire embed`: a table in, a vector for every row out, with the journal of a job."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from quire.cli import job_options as o
from quire.cli.run import execute, made_of, parsed

_TEXT = 'Jinja over columns.  [default: "{{ text }}"]'
_TRUNCATE = "Keep so many tokens of a longer text; -1: what the model takes."


@o.takes(
    *("input", "output", "model", "option", "tensor_parallel_size", "id", "where", "limit"),
    *("shard", "format", "output_column", "timings", "job", "overwrite", "reuse", "retry_failed"),
)
def embed(
    *,
    prompt: Annotated[str, typer.Option("--prompt", "-p", help=_TEXT)] = "{{ text }}",
    prompt_name: Annotated[
        str | None, typer.Option(help="Which of the model's own prompts texts begin with.")
    ] = None,
    dimensions: Annotated[
        int | None, typer.Option(help="Cut vectors to so many numbers, where the model allows it.")
    ] = None,
    truncate: Annotated[int | None, typer.Option(help=_TRUNCATE)] = None,
    normalize: Annotated[
        bool | None, typer.Option(help="Vectors of length 1 or not; as the model's files say.")
    ] = None,
    as_json: o.AsJson = False,
    quiet: o.Quiet = False,
    **written: Any,
) -> None:
    """Embed every row of a table; run it again and it goes on."""
    how = {
        "prompt_name": prompt_name,
        "dimensions": dimensions,
        "truncate_prompt_tokens": truncate,
        "normalize": normalize,
    }
    sampling = {name: value for name, value in how.items() if value is not None}
    options = {**parsed(written), "embed": True, "prompt": prompt, "sampling": sampling}
    made = made_of(options, "embed INPUT --model M -o OUTPUT")
    execute(made, as_json=as_json, quiet=quiet)
