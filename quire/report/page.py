"""The page: figures and tables are written here; the browser draws the rows and curves.

All data is escaped or compressed. The content policy allows exactly our own scripts, by their
hashes, and no access to the network.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import islice
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from quire.base.version import __version__
from quire.errors import InvalidOption
from quire.evals.scoring.scores import MetricScore, RowScore, read_row_scores, read_scores
from quire.jobs.output.results import StoredRow, StoredRun
from quire.jobs.refusals import refuse_over_run
from quire.jobs.store.durable import write_file
from quire.jobs.store.store import read_metrics
from quire.report import rows as page_rows
from quire.report.compare import Comparison, compare, pairs
from quire.report.facts import Gathering, RunFacts
from quire.report.histogram import Histogram
from quire.report.series import Chart, Series, series_of
from quire.report.thumbnails import Thumbnails
from quire.report.tiles import Tile, described, tiles, written

ASSETS = Path(__file__).parent / "assets"
MOST_ROWS = 10_000
_GENERATOR, _HEAD = b'<meta name="generator" content="quire ', 4096  # found in so many first bytes
_SCRIPTS = ("base.js", "charts.js", "diff.js", "rows.js", "detail.js", "browser.js")
_STYLES = ("uplot/uPlot.min.css", "report.css")


@dataclass(frozen=True, slots=True)
class PageRun:
    """One run, for the page's template; `number` is its place on the page."""

    number: int
    name: str
    output: str
    status: str | None
    command: str
    prompt: str | None
    written: str
    described: Sequence[tuple[str, str]]
    tiles: Sequence[Tile]
    facts: RunFacts
    series: Series
    scores: Sequence[MetricScore]

    @property
    def num_endings(self) -> int:
        return sum(count for _, count in self.facts.finish_reasons) + self.facts.num_failed


def write_report(
    runs: Sequence[StoredRun],
    target: Path,
    *,
    max_rows: int = MOST_ROWS,
    on: str | None = None,
    truth: str | None = None,
    overwrite: bool = False,
) -> int:
    """Write the page of one run, or of two side by side; returns its number of bytes. An older page
    is replaced, any other file only with `overwrite`."""
    for run in runs:
        refuse_over_run(run, target)
    if not overwrite and os.path.lexists(target) and not _is_page(target):
        raise InvalidOption(
            f"{target} exists and is no report; --overwrite replaces it",
            parameter="output",
            value=str(target),
        )
    html = report(runs, max_rows=max_rows, on=on, truth=truth).encode("utf-8", "replace")
    write_file(target, html, shared=True)
    return len(html)


def _is_page(path: Path) -> bool:
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return _GENERATOR in file.read(_HEAD)


def report(
    runs: Sequence[StoredRun],
    *,
    max_rows: int = MOST_ROWS,
    on: str | None = None,
    truth: str | None = None,
) -> str:
    """The page as text."""
    gatherings = [Gathering() for _ in runs]
    scores = [read_scores(run.home) for run in runs]
    truth = truth or _truth_column(runs[0])
    chunks: list[tuple[int, str]] = []
    comparison: Comparison | None = None
    if len(runs) == 1:
        chosen = _single(runs[0], gatherings[0], scores[0], truth, max_rows)
        chunks = list(page_rows.chunks(chosen, [_names(scores[0])]))
        for _ in chosen:  # rows for which the page has no room are counted, too
            pass
    else:
        chosen = _double(runs, scores, truth, on)
        chunks = list(page_rows.chunks(islice(chosen, max_rows), [_names(s) for s in scores]))
        comparison = compare(runs[0], runs[1], on)
        for gathering, run in zip(gatherings, runs, strict=True):
            for _ in gathering.watch(run):
                pass
    shown = [
        _page_run(number, run, gathering.facts(), found)
        for number, (run, gathering, found) in enumerate(zip(runs, gatherings, scores, strict=True))
    ]
    return _render(shown, chunks, comparison)


def _names(scores: Sequence[MetricScore]) -> list[str]:
    return [score.metric for score in scores]


def _truth_column(run: StoredRun) -> str | None:
    """The ground truth's column of the stored scores, if they name one."""
    found = [score.truth for score in read_scores(run.home) if score.truth]
    return found[0] if found else None


def _scored(
    run: StoredRun, rows: Iterator[StoredRow], scores: Sequence[MetricScore]
) -> Iterator[tuple[StoredRow, dict[str, RowScore]]]:
    """Rows with their scores, which are in the same order but may end earlier."""
    files = {score.metric: read_row_scores(run.home, score.metric) for score in scores}
    heads = {metric: next(file, None) for metric, file in files.items()}
    for row in rows:
        found = {}
        for metric, file in files.items():
            head = heads[metric]
            while head is not None and head.row < row.record.row:
                head = next(file, None)
            heads[metric] = head
            if head is not None and head.row == row.record.row:
                found[metric] = head
        yield row, found


def _single(
    run: StoredRun,
    gathering: Gathering,
    scores: Sequence[MetricScore],
    truth: str | None,
    max_rows: int,
) -> Iterator[page_rows.PageRow]:
    """The rows to show; all rows are counted."""
    watched = gathering.watch(run)
    with Thumbnails(run) as thumbnails:
        for row, found in _scored(run, islice(watched, max_rows), scores):
            pictures = thumbnails.of(row.columns)
            yield page_rows.page_row(run, row.record.key, row, [(row, found)], truth, pictures)
    for _ in watched:
        pass


def _double(
    runs: Sequence[StoredRun],
    scores: Sequence[Sequence[MetricScore]],
    truth: str | None,
    on: str | None,
) -> Iterator[page_rows.PageRow]:
    kept: list[dict[int, dict[str, RowScore]]] = [{}, {}]  # of rows that wait for their partners

    def read(number: int) -> Iterator[StoredRow]:
        run = runs[number]
        for row, found in _scored(run, run.rows(), scores[number]):
            kept[number][row.record.row] = found
            yield row

    with Thumbnails(runs[0]) as left, Thumbnails(runs[1]) as right:
        for key, *both in pairs(runs[0], runs[1], on, (read(0), read(1))):
            asked = both[0] or both[1]
            if asked is not None:
                owner = 0 if both[0] is not None else 1
                sides = [
                    None if row is None else (row, kept[number].pop(row.record.row))
                    for number, row in enumerate(both)
                ]
                pictures = (left, right)[owner].of(asked.columns)
                yield page_rows.page_row(runs[owner], key, asked, sides, truth, pictures)


def _page_run(
    number: int, run: StoredRun, facts: RunFacts, scores: Sequence[MetricScore]
) -> PageRun:
    manifest = run.manifest
    series = series_of(read_metrics(run.home) if manifest else ())
    return PageRun(
        number=number,
        name=run.name,
        output=Path(manifest.output).name if manifest else run.path.name,
        status=manifest.status if manifest else None,
        command=shlex.join(manifest.command) if manifest else "",
        prompt=manifest.prompt if manifest else None,
        written=written(manifest),
        described=described(manifest) if manifest else (),
        tiles=tiles(manifest, facts, series, scores),
        facts=facts,
        series=series,
        scores=scores,
    )


def _render(
    runs: Sequence[PageRun], chunks: Sequence[tuple[int, str]], comparison: Comparison | None
) -> str:
    total = runs[0].facts.num_rows
    if comparison is not None:
        total = comparison.num_both + comparison.num_only_first + comparison.num_only_second
    num = sum(count for count, _ in chunks)
    data = {
        "runs": [{"name": run.name, "series": asdict(run.series)} for run in runs],
        "rows": {"num": num, "chunks": [text for _, text in chunks]},
    }
    scripts = [licensed_uplot(), *(_asset(name) for name in _SCRIPTS)]
    return _template().render(
        title=" and ".join(dict.fromkeys(run.name for run in runs)),
        version=__version__,
        policy=_policy([_asset("theme.js"), *scripts]),
        theme=Markup(_asset("theme.js")),
        styles=Markup("\n".join(_asset(name) for name in _STYLES)),
        scripts=[Markup(script) for script in scripts],
        data=Markup(page_rows.as_json(data)),
        runs=runs,
        comparison=comparison,
        has_scores=any(run.scores for run in runs),
        has_charts=any(run.series.charts for run in runs),
        has_failures=any(run.facts.causes for run in runs),
        rows={"num": num, "total": total},
        rows_left_out=num < total,
    )


def licensed_uplot() -> str:
    """uPlot with its licence notice, which every copy must have."""
    return f"/*\n{_asset('uplot/LICENSE')}*/\n{_asset('uplot/uPlot.iife.min.js')}"


def _policy(scripts: Sequence[str]) -> str:
    """The content policy: our scripts by hash, our styles, pictures inside the page, and nothing
    else: no network, no frames, no other code."""
    allowed = " ".join(map(hashed, scripts))
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'"
    )


def hashed(text: str) -> str:
    """The hash of a script or style, in the form of content policies."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=_number, score=_score, seconds=_seconds, marks=_marks, described=_described
    )
    return environment.get_template("page.html.jinja")


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 100 else f"{value:,.1f}"


def _score(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _seconds(value: float) -> str:
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


def _marks(histogram: Histogram) -> list[int]:
    """The edges that get a label: the ends and a few between."""
    num = len(histogram.counts)
    step = max(1, round(num / 4))
    inner = [at for at in range(step, num, step) if num - at >= step / 2]
    return [0, *inner, num]


def _described(chart: Chart) -> str:
    """The curves in words, for screen readers."""
    parts = []
    for line in chart.lines:
        values = [value for value in line.values if value is not None]
        mean = sum(values) / len(values)
        parts.append(f"{line.label} {_number(mean)}{chart.unit} on average, at most {max(values)}")
    return f"{chart.title}: {'; '.join(parts)}"
