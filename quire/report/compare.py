"""Two runs side by side: the rows both have, their scores, and what changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from quire.errors import InvalidOption
from quire.evals.scoring.scores import read_row_scores, read_scores
from quire.evals.scoring.statistics import PairedDifference, paired_difference
from quire.jobs.output.results import StoredRow, StoredRun

_MOST_ROWS = 2_000_000


@dataclass(frozen=True, slots=True)
class MetricComparison:
    """One metric that both runs have: their means, and the rows' own differences."""

    metric: str
    first: float | None
    second: float | None
    paired: PairedDifference


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two runs share. `changes` are the lines in which their manifests differ."""

    num_both: int
    num_only_first: int
    num_only_second: int
    num_same_answers: int
    metrics: Sequence[MetricComparison]
    changes: Sequence[str]


def key_of(row: StoredRow, on: str | None) -> str:
    """The value by which rows of two runs are matched: the key, or the value of a column."""
    if on is None:
        return row.record.key
    if on not in row.columns:
        raise InvalidOption(
            f"row {row.record.row} has no column {on!r}; it has {', '.join(row.columns)}",
            parameter="on",
            value=on,
        )
    return str(row.columns[on])


def pairs(
    first: StoredRun,
    second: StoredRun,
    on: str | None = None,
    rows: tuple[Iterator[StoredRow], Iterator[StoredRow]] | None = None,
) -> Iterator[tuple[str, StoredRow | None, StoredRow | None]]:
    """The rows of the first run with their partners, then rows that only the second run has.
    `rows` are the iterators of both, if the caller made them.

    Runs over the same input have the same keys in the same order, and are read side by side. Rows
    in another order are kept in memory until their partners come.
    """
    waiting: dict[str, StoredRow] = {}
    own, other = rows or (first.rows(), second.rows())
    seen: set[str] = set()
    for row in own:
        key = key_of(row, on)
        if key in seen:
            raise InvalidOption(f"two rows of {first.name} have {key!r} in {on!r}", parameter="on")
        seen.add(key)
        partner = waiting.pop(key, None)
        while partner is None and (candidate := next(other, None)) is not None:
            found = key_of(candidate, on)
            if found == key:
                partner = candidate
            elif len(waiting) >= _MOST_ROWS:
                raise InvalidOption(
                    f"{first.name} and {second.name} have too few rows in common to compare"
                )
            else:
                waiting[found] = candidate
        yield key, row, partner
    for key, row in waiting.items():
        yield key, None, row
    for row in other:
        yield key_of(row, on), None, row


def compare(first: StoredRun, second: StoredRun, on: str | None = None) -> Comparison:
    """Compares the two runs in figures."""
    both = only_first = only_second = same = 0
    matched: list[tuple[int, int]] = []
    for _, mine, theirs in pairs(first, second, on):
        if mine is None:
            only_second += 1
        elif theirs is None:
            only_first += 1
        else:
            both += 1
            same += same_answers(mine, theirs)
            matched.append((mine.record.row, theirs.record.row))
    return Comparison(
        num_both=both,
        num_only_first=only_first,
        num_only_second=only_second,
        num_same_answers=same,
        metrics=list(_metrics(first, second, matched)),
        changes=changes(first, second),
    )


def same_answers(mine: StoredRow, theirs: StoredRow) -> bool:
    first, second = mine.record, theirs.record
    return (first.outputs, first.error_type) == (second.outputs, second.error_type)


def changes(first: StoredRun, second: StoredRun) -> list[str]:
    """The differences between the manifests of the two runs, one line each."""
    if first.manifest is None or second.manifest is None:
        return []
    return first.manifest.differences(second.manifest)[0]


def _metrics(
    first: StoredRun, second: StoredRun, matched: Sequence[tuple[int, int]]
) -> Iterator[MetricComparison]:
    means = [{s.metric: s.mean.value for s in read_scores(run.home)} for run in (first, second)]
    for metric in means[0]:
        if metric not in means[1]:
            continue
        mine, theirs = (_values(run, metric) for run in (first, second))
        both = [
            (mine[row], theirs[partner])
            for row, partner in matched
            if mine.get(row) is not None and theirs.get(partner) is not None
        ]
        yield MetricComparison(
            metric=metric,
            first=means[0][metric],
            second=means[1][metric],
            paired=paired_difference([a for a, _ in both], [b for _, b in both]),
        )


def _values(run: StoredRun, metric: str) -> dict[int, Any]:
    rows = islice(read_row_scores(run.home, metric), _MOST_ROWS)
    return {score.row: score.value for score in rows}
