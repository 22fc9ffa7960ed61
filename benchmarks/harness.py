"""What benchmarks share: their command line, their limit of seconds, parts that run in turn."""

from __future__ import annotations

import argparse
import ast
import json
import re
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quire.executor.executor import PendingStep
    from quire.step import StepPlan

Line = dict[str, Any]
Parts = Mapping[str, Callable[[], Iterator[Line]]]
OPTION = re.compile(r"[a-z_]+=")


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """Of the module's docstring the first line is the summary, the rest is shown below."""
    summary, _, details = (doc or "").partition("\n")
    return argparse.ArgumentParser(
        description=summary, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def parse_with_options(
    parser: argparse.ArgumentParser, words: Sequence[str] | None
) -> argparse.Namespace:
    """Words of the form key=value are options of `LLM`, taken out before a list swallows them; each
    value as Python reads it, else as text."""
    given = list(sys.argv[1:] if words is None else words)
    arguments = parser.parse_args([word for word in given if not OPTION.match(word)])
    arguments.options = {}
    for name, _, value in (word.partition("=") for word in given if OPTION.match(word)):
        try:
            arguments.options[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            arguments.options[name] = value
    return arguments


class Budget:
    """Seconds that may be spent, from the moment it is made, and where results go as they come."""

    def __init__(self, seconds: float, out: Path) -> None:
        self._end, self._out = time.perf_counter() + seconds, out
        out.mkdir(parents=True, exist_ok=True)

    @property
    def left(self) -> float:
        return self._end - time.perf_counter()

    def write(self, name: str, found: Any) -> None:
        (self._out / f"{name}.json").write_text(json.dumps(found, indent=1))


def run_parts(parts: Parts, names: Sequence[str], budget: Budget, file: str) -> None:
    """The lines of each part, printed and written as they come. A part that fails leaves the
    others; what no time is left for is named."""
    report: dict[str, list[Line]] = {}
    for name in names:
        lines = report.setdefault(name, [])
        try:
            for line in parts[name]() if budget.left > 0 else ():
                lines.append(line)
                print(name, json.dumps(line), flush=True)
                budget.write(file, report)
                if budget.left <= 0:
                    break
        except Exception:  # noqa: BLE001 - the other parts still count
            traceback.print_exc()
        print(f"-- {name}: {len(lines)} lines, {budget.left:.0f} s left", flush=True)


def main_of_parts(doc: str | None, parts: Parts, file: str, seconds: float) -> None:
    """The command line of a benchmark that is parts and nothing else."""
    parser = parser_of(doc)
    parser.add_argument("parts", nargs="*", choices=[*parts, []], help="all of them by default")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--seconds", type=float, default=seconds)
    asked = parser.parse_args()
    run_parts(parts, asked.parts or list(parts), Budget(asked.seconds, asked.out), file)


def median_ratio(ones: Sequence[float], others: Sequence[float]) -> float:
    """Of work done in two ways in turns, taken pair by pair, so that a busy machine slows both."""
    return statistics.median(one / other for one, other in zip(ones, others, strict=True))


class Watched:
    """An executor whose plans are seen by a function before they are computed."""

    def __init__(self, inner: Any, see: Callable[[StepPlan], None]) -> None:
        self._inner, self._see = inner, see

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def submit(self, plan: StepPlan) -> PendingStep:
        self._see(plan)
        step: PendingStep = self._inner.submit(plan)
        return step
