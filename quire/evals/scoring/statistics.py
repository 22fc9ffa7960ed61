"""Means with their standard errors, for tables of scores.

The standard error of a mean is the sample standard deviation over the root of the number of
rows, for 0/1 scores and for any others; of one row there is none. Several samples of a row are
one observation, their mean: samples of one prompt are not independent rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over `num` rows; `stderr` is None if fewer than two rows were scored."""

    value: float | None
    stderr: float | None
    num: int


class RunningMean:
    """Mean and variance of a stream in one pass, without keeping it (Welford's update)."""

    def __init__(self) -> None:
        self._num = 0
        self._mean = 0.0
        self._squares = 0.0  # sum of squared distances from the mean

    def add(self, value: float) -> None:
        self._num += 1
        distance = value - self._mean
        self._mean += distance / self._num
        self._squares += distance * (value - self._mean)

    def result(self) -> Mean:
        if self._num == 0:
            return Mean(None, None, 0)
        if self._num == 1:
            return Mean(self._mean, None, 1)
        variance = self._squares / (self._num - 1)
        return Mean(self._mean, math.sqrt(variance / self._num), self._num)


def mean_of(values: Sequence[float]) -> Mean:
    running = RunningMean()
    for value in values:
        running.add(value)
    return running.result()


def pooled(parts: Sequence[Mean]) -> Mean:
    """Joins parts of different sizes to one mean, in which each row has the same weight.

    The variance is pooled within the parts, so that differences between subjects do not count as
    noise. If a part has a single row it has no variance, and the result has no error.
    """
    parts = [part for part in parts if part.num]
    num = sum(part.num for part in parts)
    if not num:
        return Mean(None, None, 0)
    value = sum((part.value or 0.0) * part.num for part in parts) / num
    errors = [part.stderr for part in parts]
    freedom = num - len(parts)
    if freedom <= 0 or any(error is None for error in errors):
        return Mean(value, None, num)
    squares = sum(
        (part.num - 1) * part.num * (part.stderr or 0.0) ** 2 for part in parts
    )  # sum of squared distances within each part
    return Mean(value, math.sqrt(squares / freedom / num), num)


def pass_at(k: int, num_samples: int, num_right: int) -> float:
    """The chance that at least one of k samples drawn from these is right, without bias.

    5 samples of which 2 are right: pass_at(1, 5, 2) is 0.4, pass_at(4, 5, 2) is 1.
    """
    if num_samples - num_right < k:
        return 1.0
    return 1.0 - math.comb(num_samples - num_right, k) / math.comb(num_samples, k)


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """The difference of the second run from the first, on the rows that both have."""

    difference: float
    stderr: float | None
    num: int
    num_better: int
    num_worse: int


def paired_difference(first: Sequence[float], second: Sequence[float]) -> PairedDifference:
    """The mean difference row by row: far more exact than the difference of the two means."""
    differences = [after - before for before, after in zip(first, second, strict=True)]
    mean = mean_of(differences)
    return PairedDifference(
        difference=mean.value or 0.0,
        stderr=mean.stderr,
        num=mean.num,
        num_better=sum(difference > 0 for difference in differences),
        num_worse=sum(difference < 0 for difference in differences),
    )
