"""Scores of a run: made in one pass over its rows, kept beside it, read by reports and diffs.

    OUTPUT.quire/scores.json              every metric: mean, standard error, groups, pass@k
    OUTPUT.quire/scores/METRIC.jsonl      a line per row: {"row", "key", "value", "read", "reason"}

A failed row scores 0, unless failed rows are to be left out. A row that cannot be judged (no truth,
or the scorer raised) has no score; such rows are counted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import BinaryIO

from msgspec import convert

from quire.errors import CorruptJob, InvalidOption
from quire.evals.scoring.scorer import Answer, Scorer, ScorerFailed, Verdict
from quire.evals.scoring.statistics import Mean, RunningMean, pass_at
from quire.jobs.input.strict_json import parse
from quire.jobs.output.results import StoredRow, StoredRun
from quire.jobs.store.bounded import bounded_lines, read_bounded
from quire.jobs.store.durable import replacing, write_file

SUMMARY = "scores.json"
FOLDER = "scores"
_MOST_GROUPS = 1000
_MOST_BYTES, _LONGEST_LINE = 16 << 20, 1 << 20  # bytes of scores.json, and of a line of scores
_LONGEST_READ = 500  # characters of what was read from an answer


@dataclass(frozen=True, slots=True)
class MetricScore:
    """One metric over a run. `groups` is column -> value -> mean."""

    metric: str
    mean: Mean
    truth: str | None = None  # the column with the ground truth
    num_failed: int = 0
    num_unscored: int = 0
    first_problem: str | None = None
    pass_at: Mapping[str, Mean] = field(default_factory=dict)
    groups: Mapping[str, Mapping[str, Mean]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Summary:
    metrics: list[MetricScore]


@dataclass(frozen=True, slots=True)
class RowScore:
    """One row's value of one metric; None if it has no score."""

    row: int
    key: str
    value: float | None = None
    read: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ScoreOptions:
    """`truth` and `groups` are columns, `pass_at` has values of k; failed rows may be left out."""

    truth: str | None = None
    groups: tuple[str, ...] = ()
    pass_at: tuple[int, ...] = ()
    skip_failed: bool = False


class _Tally:
    """Collects one metric row by row."""

    def __init__(self, scorer: Scorer, options: ScoreOptions) -> None:
        self.scorer, self._options = scorer, options
        self._mean = RunningMean()
        self._pass_at = {k: RunningMean() for k in options.pass_at}
        self._groups: dict[str, dict[str, RunningMean]] = {name: {} for name in options.groups}
        self._failed = self._unscored = 0
        self._problem: str | None = None

    def add(self, row: StoredRow) -> RowScore:
        record = row.record
        if record.failed:
            self._failed += 1
            if self._options.skip_failed:
                return RowScore(record.row, record.key, None, None, "the row failed")
            self._count(row, [0.0] * max(1, len(record.outputs)))
            return RowScore(record.row, record.key, 0.0, None, "the row failed")
        try:
            verdicts = [self.scorer.score(answer) for answer in self._answers(row)]
        except ScorerFailed as error:
            return self._unjudged(row, str(error))
        judged = [verdict for verdict in verdicts if verdict is not None]
        if len(judged) < len(verdicts) or not judged:
            return self._unjudged(row, "no truth to judge it by")
        values = [verdict.value for verdict in judged]
        self._count(row, values)
        return _row_score(row, math.fsum(values) / len(values), judged)

    def result(self) -> MetricScore:
        return MetricScore(
            metric=self.scorer.name,
            mean=self._mean.result(),
            truth=self._options.truth,
            num_failed=self._failed,
            num_unscored=self._unscored,
            first_problem=self._problem,
            pass_at={str(k): mean.result() for k, mean in self._pass_at.items()},
            groups={
                column: {value: mean.result() for value, mean in sorted(means.items())}
                for column, means in self._groups.items()
            },
        )

    def _answers(self, row: StoredRow) -> Iterator[Answer]:
        truth = row.columns.get(self._options.truth) if self._options.truth else None
        for sample, text in enumerate(row.record.outputs or ("",)):
            place = (row.record.row, sample)
            yield Answer(text, truth, row.columns, row.continuations, place)

    def _unjudged(self, row: StoredRow, reason: str) -> RowScore:
        self._unscored += 1
        self._problem = self._problem or f"row {row.record.row}: {reason}"
        return RowScore(row.record.row, row.record.key, None, None, reason)

    def _count(self, row: StoredRow, values: Sequence[float]) -> None:
        value = math.fsum(values) / len(values)
        self._mean.add(value)
        for k, mean in self._pass_at.items():
            if len(values) < k and not row.record.failed:
                raise InvalidOption(
                    f"pass@{k} needs at least {k} samples a row; row {row.record.row} has "
                    f"{len(values)}. Run the job with -n {k} or more.",
                    parameter="pass_at",
                    value=k,
                )
            mean.add(pass_at(k, len(values), sum(v >= 1.0 for v in values)) if any(values) else 0.0)
        for column, means in self._groups.items():
            found = str(row.columns.get(column))
            if found not in means and len(means) == _MOST_GROUPS:
                raise InvalidOption(
                    f"--group {column}: more than {_MOST_GROUPS} different values; a group is "
                    "something that rows share",
                    parameter="group",
                    value=column,
                )
            means.setdefault(found, RunningMean()).add(value)


def _row_score(row: StoredRow, value: float, verdicts: Sequence[Verdict]) -> RowScore:
    read = " | ".join(v.read for v in verdicts if v.read is not None)
    reason = next((v.reason for v in verdicts if v.reason), None)
    shown = read[:_LONGEST_READ] if any(v.read is not None for v in verdicts) else None
    return RowScore(row.record.row, row.record.key, value, shown, reason)


def score(run: StoredRun, scorers: Sequence[Scorer], options: ScoreOptions) -> list[MetricScore]:
    """Score every stored row, and store the scores beside the run."""
    if options.truth is None and any(scorer.needs_truth for scorer in scorers):
        needing = ", ".join(scorer.name for scorer in scorers if scorer.needs_truth)
        raise InvalidOption(
            f"{needing} needs --truth COLUMN, the column with the right answers",
            parameter="truth",
        )
    if low := [k for k in options.pass_at if k < 1]:
        raise InvalidOption(f"--pass-at is at least 1, not {low[0]}", parameter="pass_at")
    tallies = [_Tally(scorer, options) for scorer in scorers]
    folder = run.home / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        files = [stack.enter_context(replacing(_rows_file(run.home, s.name))) for s in scorers]
        lacking = {name for name in (options.truth, *options.groups) if name is not None}
        for row in run.rows():
            if lacking and not row.record.failed:  # a row may have failed because of this
                _check_columns(row, lacking)
                lacking = set()
            for tally, file in zip(tallies, files, strict=True):
                _write(file, tally.add(row))
    results = [tally.result() for tally in tallies]
    keep_summary(run.home, results)
    return results


def _check_columns(row: StoredRow, names: Collection[str]) -> None:
    """Check the columns of the first row; a later row without the column only has no truth."""
    if missing := sorted(set(names) - row.columns.keys()):
        raise InvalidOption(
            f"row {row.record.row} has no column {missing[0]!r}; it has {', '.join(row.columns)}",
            parameter="truth",
            value=missing[0],
        )


def _write(file: BinaryIO, score: RowScore) -> None:
    described = {name: value for name, value in asdict(score).items() if value is not None}
    file.write(json.dumps(described).encode() + b"\n")


def _rows_file(home: Path, metric: str) -> Path:
    if not metric or set(metric) & set('/\\:*?"<>|\0') or metric.startswith("."):
        raise InvalidOption(f"{metric!r} cannot be the name of a metric: it names a file too")
    return home / FOLDER / f"{metric}.jsonl"


def keep_summary(home: Path, results: Sequence[MetricScore]) -> None:
    """Add these metrics to those of the run; they replace older ones of the same names."""
    kept = {score.metric: score for score in [*read_scores(home), *results]}
    text = json.dumps(asdict(_Summary([*kept.values()])), indent=1)
    write_file(home / SUMMARY, text.encode() + b"\n")


def read_scores(home: Path) -> list[MetricScore]:
    """The metrics kept beside a run; none if it was never scored."""
    path = home / SUMMARY
    if not path.is_file():
        return []
    try:
        found = parse(read_bounded(path, _MOST_BYTES).decode())
        return convert(found, _Summary).metrics
    except ValueError as error:
        raise CorruptJob(
            f"{path} does not read as scores ({error}). Score the run again."
        ) from None


def read_row_scores(home: Path, metric: str) -> Iterator[RowScore]:
    """The rows of one metric in the order of the run."""
    path = _rows_file(home, metric)
    for line in bounded_lines(path, _LONGEST_LINE):
        try:
            found = convert(parse(line.decode()), RowScore)
        except ValueError as error:
            raise CorruptJob(f"{path} does not read as scores ({error}). Score again.") from None
        yield found
