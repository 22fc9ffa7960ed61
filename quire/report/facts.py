"""Collects in one pass over a run's rows everything that the page shows about all of them."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from quire.jobs.output.results import StoredRow, StoredRun
from quire.jobs.store.record import ResultRecord
from quire.report.histogram import Histogram, histogram, percentiles

_EXAMPLES = 5  # row numbers shown of a cause
_MOST_CAUSES = _MOST_REASONS = 50
_LONGEST_MESSAGE = 2000  # characters of one
_LONGEST_TIME = 1e9  # seconds; more is no time a row took
_VARIES = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`|\d[\d,._]*")
TIMINGS = ("in the queue", "to the first token", "end to end")


@dataclass(slots=True)
class Cause:
    """Failures with the same message, except for names and numbers in it."""

    error_type: str
    example: str
    count: int = 0
    rows: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds of one phase of the rows, such as waiting in the queue."""

    label: str
    percentiles: dict[int, float]


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The figures over all rows of a run."""

    num_rows: int
    num_failed: int
    num_prompt_tokens: int
    num_output_tokens: int
    prompt_lengths: Histogram | None
    output_lengths: Histogram | None
    finish_reasons: list[tuple[str, int]]
    causes: list[Cause]
    latencies: list[Latency]

    @property
    def num_ok(self) -> int:
        return self.num_rows - self.num_failed


class Gathering:
    """Collects the facts of rows that pass; it keeps three numbers for each row, not the row."""

    def __init__(self) -> None:
        self._prompt, self._output = array("L"), array("L")
        self._timings = tuple(array("d") for _ in TIMINGS)
        self._finish: Counter[str] = Counter()
        self._causes: dict[tuple[str, str], Cause] = {}
        self._rows = self._failed = 0

    def watch(self, run: StoredRun) -> Iterator[StoredRow]:
        """The run's rows, unchanged; each is counted as it passes."""
        for row in run.rows():
            self._note(row.record)
            yield row

    def _note(self, record: ResultRecord) -> None:
        self._rows += 1
        if record.failed:
            self._failed += 1
            self._note_failure(record)
            return
        self._prompt.append(_tokens(record.prompt_tokens))
        self._output.append(_tokens(record.output_tokens))
        for reason in record.finish_reasons:
            known = reason in self._finish or len(self._finish) < _MOST_REASONS
            self._finish[reason if known else "other"] += 1
        for kept, seconds in zip(self._timings, record.extra.get("timings") or (), strict=False):
            if isinstance(seconds, int | float) and abs(seconds) <= _LONGEST_TIME:
                kept.append(seconds)

    def _note_failure(self, record: ResultRecord) -> None:
        kind, message = record.error_type or "failed", (record.error or "")[:_LONGEST_MESSAGE]
        key = (kind, _VARIES.sub("…", message))
        if key not in self._causes and len(self._causes) >= _MOST_CAUSES:
            key, message = (kind, "…"), "other causes"
        cause = self._causes.setdefault(key, Cause(kind, message))
        cause.count += 1
        if len(cause.rows) < _EXAMPLES:
            cause.rows.append(record.row)

    def facts(self) -> RunFacts:
        return RunFacts(
            num_rows=self._rows,
            num_failed=self._failed,
            num_prompt_tokens=sum(self._prompt),
            num_output_tokens=sum(self._output),
            prompt_lengths=histogram(self._prompt),
            output_lengths=histogram(self._output),
            finish_reasons=self._finish.most_common(),
            causes=sorted(self._causes.values(), key=lambda cause: -cause.count),
            latencies=[
                Latency(label, percentiles(sorted(seconds)))
                for label, seconds in zip(TIMINGS, self._timings, strict=True)
                if seconds
            ],
        )


def _tokens(num: int) -> int:
    """The count, limited: a journal from another source may contain any number."""
    return min(max(num, 0), 1 << 40)
