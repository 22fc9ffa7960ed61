"""`quire ls`, `quire show`, `quire diff`: stored runs on a terminal."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.cli.paths import path
from quire.cli.tables import figures, printed, score_table
from quire.cli.terminal import say, say_coloured, say_json
from quire.errors import CorruptJob, InvalidOption
from quire.safe_text import one_line, shown

if TYPE_CHECKING:
    from quire.jobs.input.templates import RowTest
    from quire.jobs.output.results import StoredRow, StoredRun
    from quire.report.compare import Comparison

_DEEPEST = 4  # folders below the one that is listed
_LONGEST = 2000  # characters of a text on the terminal


def ls(
    folder: Annotated[Path, typer.Argument(help="Where to look.", parser=path)] = Path("."),
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """List the runs in a folder and below."""
    if not folder.is_dir():
        raise InvalidOption(f"{folder} is no folder", parameter="folder", value=str(folder))
    found = [_listed(path) for path in sorted(_job_dirs(folder))]
    if as_json:
        say_json(found)
    elif not found:
        say(f"no runs in {folder}", err=True)
    else:
        header = ("run", "model", "status", "made", "rows", "failed", "score")
        shown = [{**run, "rows": _counted(run["rows"], run["of"])} for run in found]
        rows = [tuple("" if run[n] is None else str(run[n]) for n in header) for run in shown]
        say(printed(header, rows, left=4))


def _counted(done: int | None, whole: int | None) -> str | int | None:
    return done if whole in (None, done) else f"{done} of {whole}"


def _job_dirs(folder: Path) -> Iterator[Path]:
    from quire.jobs.store.manifest import NAME

    for depth in range(_DEEPEST + 1):
        for home in folder.glob("*/" * depth + "*.quire/"):
            # A job of another user cannot be read: it is listed as unreadable.
            if not os.access(home, os.R_OK | os.X_OK) or (home / NAME).exists():
                yield home


def _listed(job_dir: Path) -> dict[str, Any]:
    from quire.evals.scoring.scores import read_scores
    from quire.jobs.store.manifest import Manifest
    from quire.jobs.store.segments import index_of
    from quire.jobs.store.store import is_running

    name = str(job_dir).removesuffix(".quire")
    try:
        manifest = Manifest.load(job_dir)
        scores = read_scores(job_dir)
        if manifest.status == "finished" and manifest.num_rows is not None:
            done, failed = manifest.num_rows, manifest.num_failed or 0
        else:
            counts = index_of(job_dir, manifest).counts()
            done, failed = sum(counts), counts[1]
    except (CorruptJob, OSError) as error:  # the other folders are still listed
        blank = dict.fromkeys(("model", "made", "rows", "of", "failed", "score"))
        status = "damaged" if isinstance(error, CorruptJob) else "unreadable"
        return {"run": name, **blank, "status": status}
    status = manifest.status
    if status == "running" and not is_running(job_dir):
        status = "stopped"  # it was killed, and could not write its status
    first = f"{scores[0].metric} {figures(scores[0].mean)[0]}" if scores else None
    return {
        "run": name,
        "model": manifest.model,
        "status": status,
        "made": manifest.created[:16].replace("T", " "),
        "rows": done,
        "of": manifest.num_rows,
        "failed": failed,
        "score": first,
    }


def show(
    run: Annotated[str, typer.Argument(help="An OUTPUT or a job directory.")],
    num: Annotated[int, typer.Option("-n", min=0, help="How many rows.")] = 3,
    row: Annotated[list[int] | None, typer.Option(help="A row by its number; repeatable.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only rows that failed.")] = False,
    where: Annotated[
        str | None, typer.Option(help="Jinja over the columns: \"subject == 'law'\".")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object a row.")] = False,
) -> None:
    """Show what a run is, its scores, and some of its rows."""
    from quire.jobs.output.results import StoredRun

    stored = StoredRun.open(run)
    chosen = islice(_chosen(stored, row, failed, where), len(row) if row else num)
    if as_json:
        for found in chosen:
            say_json(_line(stored.table_row(found)))
        return
    _show_run(stored)
    for found in chosen:
        _show_row(stored, found)


def _chosen(
    stored: StoredRun, numbers: list[int] | None, failed: bool, where: str | None
) -> Iterator[StoredRow]:
    from quire.jobs.input.templates import RowTest

    test = None if where is None else RowTest(where, "--where")
    for found in stored.rows():
        if numbers and found.record.row not in numbers:
            continue
        if failed and not found.record.failed:
            continue
        if test is None or _holds(test, stored, found):
            yield found


def _holds(test: RowTest, stored: StoredRun, found: StoredRow) -> bool:
    from quire.jobs.input.rows import BadRow

    try:
        return test.holds(stored.table_row(found))
    except BadRow as error:
        raise InvalidOption(
            f"--where cannot be asked of row {found.record.row}: {error.message}",
            parameter="where",
        ) from None


def _show_run(stored: StoredRun) -> None:
    from quire.evals.scoring.scores import read_scores
    from quire.report.tiles import described

    manifest = stored.manifest
    if manifest is not None and stored.index is not None:
        ok, failed = stored.index.counts()
        lines = [("Rows", f"{ok + failed:,}, {failed:,} of them failed"), *described(manifest)]
        for name, value in lines:
            say(f"{name:<15} {one_line(_short(value))}")
    if scores := read_scores(stored.home):
        say("\n" + score_table(stored.name, scores))


def _show_row(stored: StoredRun, found: StoredRow) -> None:
    record = found.record
    say(f"\n--- row {record.row} ({one_line(_short(record.key))}) " + "-" * 40)
    if asked := stored.prompt(found):
        say(_short(asked))
    if record.failed:
        say(f"\n>> {_short(record.error_type or '')}: {_short(record.error or '')}")
    for text, reason in zip(record.outputs, record.finish_reasons or ("",), strict=False):
        say(f"\n>> {_short(text)}  [{_short(reason)}]")


def _line(row: dict[str, Any]) -> str:
    from quire.jobs.output.json_line import json_line

    return json_line(row).decode().rstrip("\n")


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"… {text[-_LONGEST:]}"


def diff(
    first: Annotated[str, typer.Argument(help="A run.")],
    second: Annotated[str, typer.Argument(help="Another run over the same rows.")],
    on: Annotated[
        str | None, typer.Option(help="The column that says which rows belong together.")
    ] = None,
    num: Annotated[int, typer.Option("-n", min=0, help="How many differing answers to show.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare two runs: what was asked, the scores, and the answers, word by word."""
    from dataclasses import asdict

    from quire.jobs.output.results import StoredRun
    from quire.report.compare import compare

    runs = (StoredRun.open(first), StoredRun.open(second))
    found = compare(*runs, on)
    if as_json:
        say_json(asdict(found))
        return
    for change in found.changes:
        say(one_line(_short(change)))
    say(
        f"{found.num_both:,} rows in both, {found.num_same_answers:,} with the same answer; "
        f"{found.num_only_first:,} only in {first}, {found.num_only_second:,} only in {second}"
    )
    if found.metrics:
        say("\n" + _metrics(found))
    _show_differences(*runs, on, num)


def _metrics(found: Comparison) -> str:
    header = ("metric", "first", "second", "difference", "stderr", "better", "worse", "n")
    rows = []
    for entry in found.metrics:
        paired = entry.paired
        means = ["" if mean is None else f"{mean:.4f}" for mean in (entry.first, entry.second)]
        error = "" if paired.stderr is None else f"± {paired.stderr:.4f}"
        counts = [f"{n:,}" for n in (paired.num_better, paired.num_worse, paired.num)]
        rows.append((entry.metric, *means, f"{paired.difference:+.4f}", error, *counts))
    return printed(header, rows)


def _show_differences(first: StoredRun, second: StoredRun, on: str | None, num: int) -> None:
    from quire.report.compare import pairs, same_answers

    differing = (
        (key, mine, theirs)
        for key, mine, theirs in pairs(first, second, on)
        if mine is not None and theirs is not None and not same_answers(mine, theirs)
    )
    for key, mine, theirs in islice(differing, num):
        say(f"\n--- row {mine.record.row} ({one_line(_short(key))}) " + "-" * 40)
        say_coloured(word_diff(_answer(mine), _answer(theirs), colour=sys.stdout.isatty()))


def _answer(row: StoredRow) -> str:
    record = row.record
    text = f"[{record.error_type}] {record.error}" if record.failed else "\n".join(record.outputs)
    return shown(_short(text))


def word_diff(before: str, after: str, *, colour: bool) -> str:
    """The second text, with removed and added words marked: [-gone-] {+new+}."""
    gone, new = ("\x1b[31m[-{}-]\x1b[0m", "\x1b[32m{{+{}+}}\x1b[0m") if colour else (
        "[-{}-]", "{{+{}+}}"
    )  # fmt: skip
    first, second = (re.findall(r"\s+|\w+|[^\w\s]", text) for text in (before, after))
    parts = []
    matcher = difflib.SequenceMatcher(None, first, second, autojunk=False)
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind == "equal":
            parts.append("".join(first[a:b]))
            continue
        if b > a:
            parts.append(gone.format("".join(first[a:b])))
        if d > c:
            parts.append(new.format("".join(second[c:d])))
    return "".join(parts)
