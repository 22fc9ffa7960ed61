"""Means and their errors against the textbook's formulas."""

from __future__ import annotations

import math
import statistics
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.evals.scoring.statistics import Mean, mean_of, paired_difference, pass_at, pooled

VALUES = st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=50)


@given(VALUES)
def test_the_error_of_a_mean_is_the_sample_deviation_over_the_root(values: list[float]) -> None:
    found = mean_of(values)
    assert found.value == pytest.approx(statistics.fmean(values), abs=1e-9)
    expected = statistics.stdev(values) / math.sqrt(len(values))
    assert found.stderr == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_one_row_has_no_error_and_no_row_no_mean() -> None:
    assert mean_of([1.0]) == Mean(1.0, None, 1)
    assert mean_of([]) == Mean(None, None, 0)


@given(st.integers(1, 8), st.integers(0, 8), st.integers(1, 8))
def test_pass_at_k_is_the_share_of_draws_with_a_right_one(n: int, right: int, k: int) -> None:
    right, k = min(right, n), min(k, n)
    samples = [1] * right + [0] * (n - right)
    draws = list(combinations(samples, k))
    assert pass_at(k, n, right) == pytest.approx(sum(any(d) for d in draws) / len(draws))


def test_parts_are_pooled_by_size() -> None:
    easy, hard = [1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 1.0]
    both = pooled([mean_of(easy), mean_of(hard)])
    assert both.value == pytest.approx(4 / 7)
    within = statistics.variance(easy) * 3 + statistics.variance(hard) * 2
    assert both.stderr == pytest.approx(math.sqrt(within / 5 / 7))
    assert pooled([mean_of([1.0]), mean_of([0.0, 1.0])]) == Mean(pytest.approx(2 / 3), None, 3)
    assert pooled([]) == Mean(None, None, 0)


def test_a_paired_difference_is_sharper_than_two_means() -> None:
    first, second = [0.0, 1.0, 0.0, 1.0], [1.0, 1.0, 0.0, 1.0]
    found = paired_difference(first, second)
    assert (found.difference, found.num_better, found.num_worse) == (0.25, 1, 0)
    assert found.stderr == pytest.approx(0.25)
    assert found.stderr < math.hypot(mean_of(first).stderr or 0, mean_of(second).stderr or 0)
