"""Histograms of lengths with round bin edges, and percentiles."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

_MOST_BINS = 24
_WIDE = 40  # if the largest value is so many times the smallest, bins grow by a factor


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts between edges: bin i has values from edges[i] up to, not including, edges[i + 1]."""

    edges: Sequence[float]
    counts: Sequence[int]
    mean: float
    percentiles: dict[int, float]

    @property
    def most(self) -> int:
        return max(self.counts)


def histogram(values: Sequence[float]) -> Histogram | None:
    """The histogram of lengths or seconds; None for no values."""
    if not values:
        return None
    ordered = sorted(values)
    edges = _edges(ordered[0], ordered[-1], whole=isinstance(ordered[0], int))
    counts = [0] * (len(edges) - 1)
    for value in ordered:
        counts[min(bisect_right(edges, value), len(counts)) - 1] += 1
    return Histogram(edges, counts, math.fsum(ordered) / len(ordered), percentiles(ordered))


def percentiles(ordered: Sequence[float]) -> dict[int, float]:
    """Percent -> the value that so many percent of all do not exceed; `ordered` ascends."""
    last = len(ordered) - 1
    ranks = {p: max(0, math.ceil(p / 100 * len(ordered)) - 1) for p in (50, 90, 99, 100)}
    return {p: ordered[min(rank, last)] for p, rank in ranks.items()}


def _edges(low: float, high: float, *, whole: bool) -> list[float]:
    if whole and high - low < _MOST_BINS:
        return [float(edge) for edge in range(int(low), int(high) + 2)]
    if low > 0 and high / low > _WIDE:
        factor = (high / low) ** (1 / _MOST_BINS)
        edges = [low * factor**i for i in range(_MOST_BINS)]
    else:
        edges = [low + (high - low) * i / _MOST_BINS for i in range(_MOST_BINS)]
    if whole:
        edges = sorted({float(math.floor(edge)) for edge in edges})
    top = high + 1.0 if whole else math.nextafter(high, math.inf)
    return [*edges, top]
