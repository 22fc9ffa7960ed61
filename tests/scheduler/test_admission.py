"""The predicted peak, against walking through every step."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from quire.scheduler.admission import peak_blocks

row = st.tuples(st.integers(0, 9), st.integers(1, 40), st.integers(1, 3))


@given(st.lists(row, max_size=6), st.sampled_from([1, 4, 16]))
def test_the_peak_is_the_most_that_any_step_needs(
    rows: list[tuple[int, int, int]], size: int
) -> None:
    used = sum(own for own, _, _ in rows)
    most = float(used)
    for step in range(1, max((left for _, left, _ in rows), default=0) + 1):
        now = 0.0
        for own, left, count in rows:
            if left >= step:
                now += own + count * step / size
        most = max(most, now)
    columns = np.array(rows, np.float64).reshape(-1, 3).T
    peak = peak_blocks(used, columns[0], columns[1], columns[2], size)
    assert abs(max(used, peak) - most) < 1e-6


def test_nobody_running_needs_what_is_used() -> None:
    none = np.empty(0)
    assert peak_blocks(7, none, none, none, 16) == 7.0
