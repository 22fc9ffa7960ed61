"""`quire export`: results as a file, or as a data set on the Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quire.cli.paths import path
from quire.cli.terminal import say, say_json
from quire.errors import InvalidOption


def export(
    run: Annotated[str, typer.Argument(help="An OUTPUT or a job directory.")],
    to: Annotated[
        Path | None, typer.Option(help="A .parquet, .jsonl or .csv file.", parser=path)
    ] = None,
    push_to_hub: Annotated[
        str | None, typer.Option(help="A data set of the Hub: owner/name.")
    ] = None,
    public: Annotated[
        bool, typer.Option("--public", help="Let everyone see the data set; else it is private.")
    ] = False,
    split: Annotated[str, typer.Option(help="The split's name on the Hub.")] = "train",
    license: Annotated[str | None, typer.Option(help="The licence that the card names.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
    keep_formulas: Annotated[
        bool,
        typer.Option("--keep-formulas", help="In CSV, no apostrophe before = + - @ at the start."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write results to a file, or push them to the Hub, private unless said otherwise."""
    from quire.jobs.output.results import StoredRun
    from quire.report.export import export_file, push

    if (to is None) == (push_to_hub is None):
        raise InvalidOption("one of --to and --push-to-hub is needed, and not both", parameter="to")
    stored = StoredRun.open(run)
    if to is not None:
        num_rows = export_file(stored, to, overwrite=overwrite, keep_formulas=keep_formulas)
        described, where = {"file": str(to)}, str(to)
    else:
        pushed = push(stored, str(push_to_hub), private=not public, split=split, license=license)
        num_rows, where = pushed.num_rows, f"{pushed.url} ({pushed.seen_by})"
        described = {"url": pushed.url, "seen_by": pushed.seen_by}
    if as_json:
        say_json({**described, "rows": num_rows})
    else:
        say(f"{num_rows:,} rows: {where}")
