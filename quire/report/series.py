"""Makes the curves of a page from the engine's metrics, a line a second.

Time on the axis is working time: a pause (the job was killed and continued the next day) is left
out and marked. If a counter decreases, a new engine has started.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_MOST_POINTS = 600
# Points on either side: tokens are counted when their row finishes, so many come at once.
_SMOOTH = 2
_MOST_RESTARTS = 10_000
_LARGEST = 1e15  # the largest figure; sums of larger ones would not be exact
_LONGEST_STEP = 60.0  # seconds between two lines of one engine; more is a pause


@dataclass(frozen=True, slots=True)
class Line:
    """One curve; None where it has no value."""

    label: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves that share an axis; `top` sets the end of the axis."""

    title: str
    lines: Sequence[Line]
    unit: str = ""
    top: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """All curves. `restarts` are the seconds at which a new engine began."""

    seconds: Sequence[float]
    charts: Sequence[Chart]
    restarts: Sequence[float]
    working_seconds: float
    num_prompt_tokens: float
    num_output_tokens: float


@dataclass(slots=True)
class _Span:
    """The sums of one or more lines of one engine."""

    at: float  # working seconds since the job began, at its end
    seconds: float
    num_lines: int
    gained: dict[str, float]
    levels: dict[str, tuple[float, int]]  # name -> (sum, number) over the lines that have it

    def add(self, later: _Span) -> None:
        self.at, self.seconds = later.at, self.seconds + later.seconds
        self.num_lines += later.num_lines
        for name, value in later.gained.items():
            self.gained[name] += value
        for name, (total, num) in later.levels.items():
            mine = self.levels.get(name, (0.0, 0))
            self.levels[name] = mine[0] + total, mine[1] + num


_COUNTERS = ("prompt_tokens", "output_tokens", "finished")
_LEVELS = ("running", "waiting", "kv_use", "prefix_hits")
_READ = ("time", "began", *_COUNTERS, *_LEVELS)


class _Timeline:
    """Spans of the same number of lines each; if there are too many, each two are joined. So a job
    of weeks takes no more memory than a job of minutes."""

    def __init__(self) -> None:
        self.spans: list[_Span] = []
        self.restarts: list[float] = []
        self.total = dict.fromkeys(_COUNTERS, 0.0)
        self.at = 0.0
        self._lines_each = 1

    def add(self, seconds: float, gained: dict[str, float], now: Mapping[str, Any]) -> None:
        self.at += seconds
        for name, value in gained.items():
            self.total[name] += value
        levels = {name: (v, 1) for name in _LEVELS if (v := _figure(now.get(name))) is not None}
        span = _Span(self.at, seconds, 1, gained, levels)
        if self.spans and self.spans[-1].num_lines < self._lines_each:
            self.spans[-1].add(span)
        else:
            self.spans.append(span)
        if len(self.spans) >= 2 * _MOST_POINTS:
            self.halve()

    def halve(self) -> None:
        for first, second in zip(self.spans[::2], self.spans[1::2], strict=False):
            first.add(second)
        self.spans = self.spans[::2]
        self._lines_each *= 2

    def restart(self) -> None:
        if len(self.restarts) < _MOST_RESTARTS:
            self.restarts.append(round(self.at, 3))


def series_of(metrics: Iterable[Mapping[str, Any]]) -> Series:
    """The curves, at most _MOST_POINTS points each."""
    timeline = _timeline(metrics)
    if len(timeline.spans) > _MOST_POINTS:
        timeline.halve()
    return Series(
        seconds=[round(span.at, 3) for span in timeline.spans],
        charts=[chart for chart in _charts(timeline.spans) if chart.lines],
        restarts=timeline.restarts,
        working_seconds=timeline.at,
        num_prompt_tokens=timeline.total["prompt_tokens"],
        num_output_tokens=timeline.total["output_tokens"],
    )


def _timeline(metrics: Iterable[Mapping[str, Any]]) -> _Timeline:
    timeline = _Timeline()
    before: Mapping[str, Any] | None = None
    for line in metrics:
        now = {name: found for name in _READ if (found := _figure(line.get(name))) is not None}
        if "time" not in now:
            continue
        if before is not None and not _same_engine(before, now):
            timeline.restart()
            before = None
        if before is None and "began" in now:
            before = {"time": now["began"]}
        if before is not None and now["time"] > before["time"]:
            gained = {name: now.get(name, 0.0) - before.get(name, 0.0) for name in _COUNTERS}
            timeline.add(now["time"] - before["time"], gained, now)
        before = now
    return timeline


def _figure(value: Any) -> float | None:
    """A number that can be added up; None for any other value in a line."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and -_LARGEST <= value <= _LARGEST else None


def _same_engine(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether both lines are of one engine: by its start time, else if no counter decreased."""
    if "began" in before or "began" in now:
        return before.get("began") == now.get("began")
    grows = all(now.get(name, 0) >= before.get(name, 0) for name in _COUNTERS)
    return grows and now["time"] - before["time"] <= _LONGEST_STEP


def _charts(spans: Sequence[_Span]) -> list[Chart]:
    def rate(name: str) -> list[float | None]:
        gained = [span.gained[name] for span in spans]
        seconds = [span.seconds for span in spans]
        around = [slice(max(0, at - _SMOOTH), at + _SMOOTH + 1) for at in range(len(spans))]
        return [_rounded(sum(gained[part]) / sum(seconds[part])) for part in around]

    def level(name: str, scale: float = 1.0) -> list[float | None]:
        found = [span.levels.get(name, (0.0, 0)) for span in spans]
        return [_rounded(scale * total / num) if num else None for total, num in found]

    return [
        Chart(
            "Tokens of finished rows, per second",
            _lines(("output", rate("output_tokens")), ("prompt", rate("prompt_tokens"))),
        ),
        Chart("Requests", _lines(("running", level("running")), ("waiting", level("waiting")))),
        Chart("KV cache in use", _lines(("used", level("kv_use", 100.0))), "%", 100.0),
        Chart(
            "Prompt tokens found in the prefix cache, so far",
            _lines(("found", level("prefix_hits", 100.0))),
            "%",
            100.0,
        ),
    ]


def _lines(*lines: tuple[str, Sequence[float | None]]) -> list[Line]:
    """The curves that have at least one point."""
    return [Line(label, values) for label, values in lines if any(v is not None for v in values)]


def _rounded(value: float) -> float:
    return round(value, 2)
