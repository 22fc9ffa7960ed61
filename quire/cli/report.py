"""`quire report`: a run, or two side by side, as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quire.cli.paths import path
from quire.cli.terminal import say, say_json
from quire.errors import InvalidOption


def report(
    runs: Annotated[list[str], typer.Argument(help="One run, or two to compare.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="[default: RUN.html]", parser=path)
    ] = None,
    rows: Annotated[int, typer.Option(help="So many rows can be browsed in the page.")] = 10_000,
    on: Annotated[
        str | None,
        typer.Option(help="Of two runs: the column that says which rows belong together."),
    ] = None,
    truth: Annotated[str | None, typer.Option(help="The column with the right answers.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a file that is no report.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write one HTML file that shows everything about a run, offline."""
    from quire.jobs.output.results import StoredRun
    from quire.report.page import write_report

    if len(runs) > 2:
        raise InvalidOption(f"a report has one run or two, not {len(runs)}", parameter="runs")
    if rows < 0:
        raise InvalidOption(f"--rows is 0 or more, not {rows}", parameter="rows", value=rows)
    stored = [StoredRun.open(run) for run in runs]
    run = Path(runs[0])
    run = run if run.name else run.absolute()  # the folder that the command is run in
    target = output or run.with_name(run.name.removesuffix(".quire")).with_suffix(".html")
    num_bytes = write_report(stored, target, max_rows=rows, on=on, truth=truth, overwrite=overwrite)
    if as_json:
        say_json({"report": str(target), "bytes": num_bytes})
    else:
        say(f"{target} ({num_bytes / 1e6:.1f} MB)")
