"""How many steps rows with masks try without them."""

from __future__ import annotations

import numpy as np
import pytest

from quire.scheduler.ahead import LEAST_PAUSE, Ahead

MOST = 32


def play(ahead: Ahead, plans: int, rows: int, stands: float) -> tuple[list[int], int, int]:
    """Plans in which each token stands by chance: their steps, tokens that were kept, and those
    that were drawn."""
    rng, steps, kept = np.random.default_rng(3), list[int](), 0
    for _ in range(plans):
        steps.append(ahead.steps)
        most = np.full(rows, steps[-1] - 1)
        stood = np.minimum(rng.geometric(1 - stands, rows) - 1, most)
        ahead.observe(most.astype(np.int32), stood.astype(np.int32))
        kept += rows + int(stood.sum())
    return steps, kept, rows * sum(steps)


@pytest.mark.parametrize("rows", [16, 256])
def test_the_more_stands_the_more_is_tried_and_little_for_nothing(rows: int) -> None:
    most = []
    for stands in (0.8, 0.9, 0.95, 0.99):
        steps, kept, drawn = play(Ahead(MOST), 200, rows, stands)
        assert kept > 0.7 * drawn, stands
        most.append(sum(steps))
    assert most == sorted(most) and most[0] > 300 and most[-1] > 5000


def test_what_never_stands_is_hardly_tried() -> None:
    steps, _, _ = play(Ahead(MOST), 1000, 256, 0.2)
    assert max(steps) == 2 and steps.count(2) < 12


def test_another_text_is_tried_again() -> None:
    ahead = Ahead(MOST)
    play(ahead, LEAST_PAUSE, 64, 0.2)
    steps, _, _ = play(ahead, 3 * LEAST_PAUSE, 64, 0.98)
    assert max(steps) > 8


def test_where_plans_have_one_step_nothing_is_tried() -> None:
    assert Ahead(1).steps == 1
