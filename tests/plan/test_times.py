"""What a step costs, learned from steps."""

from __future__ import annotations

import numpy as np
import pytest

from quire.plan.times import ASSUMED_FLOPS, MOST_KINDS, StepCost, StepTimes, assumed_cost
from tests.plan.making import SPEC

TRUE = StepCost(fixed=5e-3, token=4e-5, sample=1e-4, position=3e-8)


def steps(seed: int, count: int) -> list[tuple[int, int, int]]:
    """Steps as they come: prefill, decode, and both."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        rows, prompt = int(rng.integers(0, 200)), int(rng.integers(0, 4000))
        prompt *= int(rng.random() < 0.4)
        rows += int(rows + prompt == 0)
        context = rows * int(rng.integers(50, 2000)) + prompt * int(rng.integers(1, 1500))
        made.append((rows + prompt, rows + int(prompt > 0), context))
    return made


def seconds(cost: StepCost, step: tuple[int, int, int]) -> float:
    return cost.seconds(steps=1, tokens=step[0], sampled=step[1], context=step[2])


def test_before_anything_was_measured_the_arithmetic_speaks() -> None:
    times = StepTimes(SPEC)
    flops = SPEC.flops(tokens=100, context=5000, sampled=3)
    cost, assumed = times.cost, flops / ASSUMED_FLOPS
    assert cost.seconds(steps=0, tokens=100, sampled=3, context=5000) == pytest.approx(assumed)
    assert cost.fixed > 0
    assert "nothing measured" in times.describe()


def test_known_coefficients_are_recovered() -> None:
    times = StepTimes(SPEC)
    for step in steps(0, 1000):
        times.observe(*step, seconds(TRUE, step))
    found = times.cost
    assert found.fixed == pytest.approx(TRUE.fixed, rel=0.02)
    assert found.token == pytest.approx(TRUE.token, rel=0.02)
    assert found.sample == pytest.approx(TRUE.sample, rel=0.02)
    assert found.position == pytest.approx(TRUE.position, rel=0.02)
    assert times.describe() == "fitted to 1,000 measured steps"


def test_noise_and_disturbed_steps_do_little() -> None:
    rng = np.random.default_rng(1)
    times = StepTimes(SPEC)
    for step in steps(1, 2000):
        disturbed = 30.0 if rng.random() < 0.02 else 1.0
        times.observe(*step, seconds(TRUE, step) * disturbed * float(rng.uniform(0.9, 1.1)))
    real = sum(seconds(TRUE, s) for s in steps(2, 500))
    assert sum(seconds(times.cost, s) for s in steps(2, 500)) == pytest.approx(real, rel=0.15)


def test_decode_alone_foretells_decode_and_no_cost_is_negative() -> None:
    times = StepTimes(SPEC)
    for context in range(1000, 40_000, 500):
        times.observe(32, 32, context, seconds(TRUE, (32, 32, context)))
    cost = times.cost
    assert min(cost.fixed, cost.token, cost.sample, cost.position) >= 0
    step = (32, 32, 20_000)
    assert seconds(cost, step) == pytest.approx(seconds(TRUE, step), rel=0.05)


def test_a_few_prefill_steps_are_remembered_among_many_decode_steps() -> None:
    times = StepTimes(SPEC)
    prefill = (4000, 1, 8_000_000)
    for _ in range(3):
        times.observe(*prefill, seconds(TRUE, prefill))
    for k in range(5000):
        step = (32, 32, 5000 + 32 * (k % 500))
        times.observe(*step, seconds(TRUE, step))
    assert seconds(times.cost, prefill) == pytest.approx(seconds(TRUE, prefill), rel=0.1)


def test_a_machine_that_became_slower_is_believed_in_the_end() -> None:
    times = StepTimes(SPEC)
    for k, step in enumerate(steps(3, 6000)):
        times.observe(*step, seconds(TRUE, step) * (1 if k < 1000 else 2))
    step = (100, 100, 50_000)
    assert seconds(times.cost, step) == pytest.approx(2 * seconds(TRUE, step), rel=0.1)


def test_one_observation_scales_the_assumed_machine() -> None:
    times = StepTimes(SPEC)
    times.observe(64, 1, 2080, 10 * seconds(times.assumed, (64, 1, 2080)))
    step = (128, 1, 8256)
    assert seconds(times.cost, step) == pytest.approx(10 * seconds(times.assumed, step), rel=0.1)


def test_steps_taken_together_count_one_by_one() -> None:
    together, alone = StepTimes(SPEC), StepTimes(SPEC)
    together.observe(80, 80, 8000, 0.8, steps=8)
    for _ in range(8):
        alone.observe(10, 10, 1000, 0.1)
    assert together.num_observed == alone.num_observed == 8
    assert together.cost.fixed == pytest.approx(alone.cost.fixed)


def test_what_cannot_have_happened_is_not_learned() -> None:
    times = StepTimes(SPEC)
    times.observe(0, 0, 0, 1.0)
    times.observe(5, 5, 5, 0.0)
    times.observe(5, 5, 5, float("nan"))
    times.observe(5, 5, 5, float("inf"))
    assert times.num_observed == 0
    assert times.cost == assumed_cost(SPEC)


def test_memory_is_bounded() -> None:
    times = StepTimes(SPEC)
    for a in range(12):
        for b in range(12):
            for c in range(12):
                times.observe(2**a, 2**b, 2**c, 1e-3)
    assert len(times._kinds) == MOST_KINDS
    assert times.cost.fixed > 0
