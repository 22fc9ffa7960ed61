"""The engine's metrics, a line a second, as the curves of a page.

Time on the axis is working time: where the engine was away (killed, continued the next day), the
gap is left out and marked. Counters that fall back belong to an engine that started again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_MOST_POINTS = 600
_SMOOTH = (
    2  # points on either side: tokens are counted when their row finishes, so they come in gusts
)
_LONGEST_STEP = 60.0  # seconds between two lines of one engine; more is a pause


@dataclass(frozen=True, slots=True)
class Line:
    """One curve; None where there is nothing to say."""

    label: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves that share an axis; `top` fixes its end."""

    title: str
    lines: Sequence[Line]
    unit: str = ""
    top: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """Everything over time. `restarts` are the seconds at which an engine began anew."""

    seconds: Sequence[float]
    charts: Sequence[Chart]
    restarts: Sequence[float]
    working_seconds: float
    num_prompt_tokens: float
    num_output_tokens: float


@dataclass(frozen=True, slots=True)
class _Step:
    """What happened between two lines of the same engine."""

    at: float  # working seconds since the job began
    seconds: float
    gained: Mapping[str, float]
    now: Mapping[str, Any]


_COUNTERS = ("prompt_tokens", "output_tokens", "finished")


def series_of(metrics: Iterable[Mapping[str, Any]]) -> Series:
    """The curves, at most _MOST_POINTS points each."""
    steps, restarts = _steps(metrics)
    size = max(1, -(-len(steps) // _MOST_POINTS))
    groups = [steps[at : at + size] for at in range(0, len(steps), size)]
    total = {name: sum(step.gained.get(name, 0.0) for step in steps) for name in _COUNTERS}
    return Series(
        seconds=[round(group[-1].at, 3) for group in groups],
        charts=[chart for chart in _charts(groups) if chart.lines],
        restarts=restarts,
        working_seconds=steps[-1].at if steps else 0.0,
        num_prompt_tokens=total["prompt_tokens"],
        num_output_tokens=total["output_tokens"],
    )


def _steps(metrics: Iterable[Mapping[str, Any]]) -> tuple[list[_Step], list[float]]:
    steps: list[_Step] = []
    restarts: list[float] = []
    at = 0.0
    before: Mapping[str, Any] | None = None
    for now in metrics:
        if not isinstance(now.get("time"), int | float):
            continue
        if before is not None and not _same_engine(before, now):
            restarts.append(round(at, 3))
            before = None
        if before is None and isinstance(now.get("began"), int | float):
            before = {"time": now["began"]}
        if before is not None and now["time"] > before["time"]:
            seconds = now["time"] - before["time"]
            at += seconds
            gained = {name: now.get(name, 0) - before.get(name, 0) for name in _COUNTERS}
            steps.append(_Step(at, seconds, gained, now))
        before = now
    return steps, restarts


def _same_engine(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """An engine names itself by when it began; one that does not is known by what it counts."""
    if "began" in before or "began" in now:
        return before.get("began") == now.get("began")
    grows = all(now.get(name, 0) >= before.get(name, 0) for name in _COUNTERS)
    return grows and now["time"] - before["time"] <= _LONGEST_STEP


def _charts(groups: Sequence[Sequence[_Step]]) -> list[Chart]:
    def rate(name: str) -> list[float | None]:
        gained = [sum(step.gained[name] for step in group) for group in groups]
        seconds = [sum(step.seconds for step in group) for group in groups]
        around = [slice(max(0, at - _SMOOTH), at + _SMOOTH + 1) for at in range(len(groups))]
        return [_rounded(sum(gained[part]) / sum(seconds[part])) for part in around]

    def level(name: str, scale: float = 1.0) -> list[float | None]:
        found = []
        for group in groups:
            values = [step.now[name] for step in group if step.now.get(name) is not None]
            found.append(_rounded(scale * sum(values) / len(values)) if values else None)
        return found

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
    """The curves that have a point at all."""
    return [Line(label, values) for label, values in lines if any(v is not None for v in values)]


def _rounded(value: float) -> float:
    return round(value, 2)
