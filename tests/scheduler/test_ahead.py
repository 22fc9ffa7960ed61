"""How many steps rows with masks try without them."""

from __future__ import annotations

import numpy as np
import pytest

from quire.scheduler.ahead import Ahead

MOST, ROWS, TOKENS = 32, 256, 128
SMALL, LARGE = (5.0, 1.1), (5.0, 40.0)  # milliseconds that a plan takes, and each of its steps


def play(
    ahead: Ahead,
    stands: float,
    cost: tuple[float, float],
    *,
    rows: int = ROWS,
    captures: bool = True,
) -> tuple[list[int], float]:
    """Answers in which each token stands by chance: the steps of their plans, and how much longer
    they would take with one step in each. Where it `captures`, the first plan of one step and the
    first of more than one take longer."""
    rng, steps, took = np.random.default_rng(3), list[int](), 0.0
    written = np.zeros(rows, np.int64)
    while (left := int((written < TOKENS).sum())) > 0:
        steps.append(ahead.steps)
        tried = np.full(left, steps[-1] - 1, np.int32)
        stood = np.minimum(rng.geometric(1 - stands, left) - 1, tried).astype(np.int32)
        seconds = (cost[0] + cost[1] * steps[-1]) * rng.lognormal(0, 0.05)
        ahead.observe(tried, stood)
        is_new = [one > 1 for one in steps].count(steps[-1] > 1) == 1
        ahead.took(steps[-1], seconds + 150 * (captures and is_new), left)
        written[written < TOKENS] += stood + 1
        took += seconds
    return steps, TOKENS * sum(cost) / took


@pytest.mark.parametrize("rows", [16, 256])
def test_the_more_stands_the_further_rows_of_a_small_model_go(rows: int) -> None:
    gains = [play(Ahead(MOST), stands, SMALL, rows=rows)[1] for stands in (0.6, 0.9, 0.99)]
    assert gains == sorted(gains) and gains[0] > 1.05 and gains[-1] > 2


@pytest.mark.parametrize("cost", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("stands", [0.2, 0.6, 0.9])
def test_trying_never_costs_much(stands: float, cost: tuple[float, float]) -> None:
    assert play(Ahead(MOST), stands, cost)[1] > 0.95


def test_what_never_stands_is_hardly_tried() -> None:
    steps, _ = play(Ahead(MOST), 0.2, SMALL)
    assert max(steps) == 2 and steps.count(2) <= 8


def test_another_text_is_tried_again() -> None:
    ahead = Ahead(MOST)
    assert max(play(ahead, 0.2, SMALL)[0]) == 2
    assert max(play(ahead, 0.98, SMALL, captures=False)[0]) > 4


def test_where_plans_have_one_step_nothing_is_tried() -> None:
    assert Ahead(1).steps == 1
