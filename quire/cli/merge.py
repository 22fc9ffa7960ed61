"""`quire merge`: writes the output of a job of several workers, if none of them did."""

from __future__ import annotations

from typing import Annotated

import typer

from quire.cli import job_options as o
from quire.cli.run import finish


def merge(
    output: Annotated[str, typer.Argument(help="The OUTPUT of a `quire run --join`.")],
    as_json: o.AsJson = False,
) -> None:
    """Write the OUTPUT of a job of --join; its last worker does so by itself."""
    from quire.jobs.join.merge import merge_output
    from quire.jobs.store.place import job_dir_of

    finish(merge_output(job_dir_of(output)), as_json=as_json)
