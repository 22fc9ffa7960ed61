"""Durations as people read them, wherever quire tells one."""

from __future__ import annotations

import pytest

from quire.base.durations import duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (7.34, "7.3 s"),
        (59.96, "1 min 00 s"),
        (250, "4 min 10 s"),
        (3599.7, "1 h 00 min"),
        (7500, "2 h 05 min"),
        (9_000_000, "2,500 h 00 min"),
    ],
)
def test_a_duration_is_told_in_units_that_fit_it(seconds: float, text: str) -> None:
    assert duration(seconds) == text
