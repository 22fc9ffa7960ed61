"""Tables on a terminal: aligned text that greps and pastes well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quire.safe_text import one_line

if TYPE_CHECKING:
    from quire.evals.scoring.scores import MetricScore
    from quire.evals.scoring.statistics import Mean

_LONGEST = 200  # characters of a cell


def printed(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Aligned columns: the first `left` to the left, the others, figures, to the right."""
    rows = [[_cell(text) for text in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(header, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(
            cell.ljust(width) if at < left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()

    return "\n".join([line(header), line(["-" * width for width in widths]), *map(line, rows)])


def _cell(text: str) -> str:
    """The text on one line, with at most _LONGEST characters."""
    return one_line(text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…")


def score_table(name: str, scores: Sequence[MetricScore], *, shots: int | None = None) -> str:
    """A line for each metric and each of its groups, with the columns that lm-eval prints."""
    rows: list[tuple[str, ...]] = []
    for score in scores:
        metric, _, filtered = score.metric.partition(",")
        means = [(name, score.mean)]
        means += [(f" pass@{k}", mean) for k, mean in score.pass_at.items()]
        for groups in score.groups.values():
            means += [(f" - {value}", mean) for value, mean in groups.items()]
        for label, mean in means:
            shown = "" if shots is None else str(shots)
            rows.append((label, shown, filtered or "none", metric, *figures(mean)))
    header = ("task" if shots is not None else "run", "n-shot", "filter", "metric")
    figures_of = ("value", "stderr", "n")
    return printed((*header, *figures_of), rows, left=4)


def figures(mean: Mean) -> tuple[str, str, str]:
    value = "" if mean.value is None else f"{mean.value:.4f}"
    error = "" if mean.stderr is None else f"± {mean.stderr:.4f}"
    return value, error, f"{mean.num:,}"


def score_facts(scores: Sequence[MetricScore]) -> list[dict[str, object]]:
    """The same for a program."""
    from dataclasses import asdict

    return [asdict(score) for score in scores]
