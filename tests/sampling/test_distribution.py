"""Frequencies of 100,000 draws against the probabilities they should have."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from tests.sampling.making import make_params, make_sampler, make_start, plain_kept

NUM_DRAWS = 100_000

LIMITS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.6},
    {"temperature": 1.7},
    {"top_k": 5},
    {"top_p": 0.8},
    {"min_p": 0.1},
    {"temperature": 1.3, "top_k": 12, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 0.7, "top_p": 0.95, "top_k": 40},
]


def draw_many(logits: torch.Tensor, fields: dict[str, Any], num_draws: int) -> np.ndarray:
    """Draws that differ in position only, many lines of one row at a time."""
    sampler = make_sampler(len(logits), make_start(params=make_params(**fields), seed=11))
    at_once = 20_000 if len(logits) < 100 else 200
    lines = logits.expand(at_once, -1)
    rows = np.zeros(at_once, np.int32)
    drawn = []
    for begin in range(1, num_draws, at_once):
        positions = np.arange(begin, begin + at_once, dtype=np.int32)
        drawn.append(sampler.sample(lines, rows, positions, None).tokens.numpy())
    return np.concatenate(drawn)


def chance_of_worse(drawn: np.ndarray, chances: np.ndarray) -> float:
    """The chi-square test's p; rare tokens are counted together."""
    seen = np.bincount(drawn, minlength=len(chances)).astype(float)
    expected = chances * len(drawn)
    rare = expected < 10
    assert seen[chances == 0].sum() == 0
    seen = np.append(seen[~rare], seen[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    seen, expected = seen[expected > 0], expected[expected > 0]
    statistic, freedom = float(((seen - expected) ** 2 / expected).sum()), len(seen) - 1
    half = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def expected_chances(logits: torch.Tensor, fields: dict[str, Any]) -> np.ndarray:
    params = make_params(**fields)
    scores = (logits.double() / params.temperature).numpy()
    kept = list(plain_kept(scores.tolist(), params))
    chances = np.zeros(len(scores))
    chances[kept] = np.exp(scores[kept] - scores.max())
    return chances / chances.sum()


@pytest.mark.parametrize("fields", LIMITS, ids=str)
def test_frequencies_match_the_probabilities_of_a_small_vocabulary(fields: dict[str, Any]) -> None:
    logits = torch.randn(20, generator=torch.Generator().manual_seed(2)) * 1.5
    drawn = draw_many(logits, fields, NUM_DRAWS)
    assert len(drawn) == NUM_DRAWS
    assert chance_of_worse(drawn, expected_chances(logits, fields)) > 1e-3


@pytest.mark.parametrize(
    "fields", [{}, {"top_k": 50}, {"top_p": 0.9}, {"min_p": 0.05}, LIMITS[-1]], ids=str
)
def test_frequencies_match_the_probabilities_of_5000_tokens(
    fields: dict[str, Any], long_mode: bool
) -> None:
    logits = torch.randn(5000, generator=torch.Generator().manual_seed(4)) * 2.5
    num_draws = NUM_DRAWS if long_mode else NUM_DRAWS // 10
    drawn = draw_many(logits, fields, num_draws)
    assert chance_of_worse(drawn, expected_chances(logits, fields)) > 1e-3


def test_the_test_notices_a_wrong_temperature() -> None:
    logits = torch.randn(20, generator=torch.Generator().manual_seed(2)) * 1.5
    drawn = draw_many(logits, {"temperature": 1.05}, NUM_DRAWS)
    assert chance_of_worse(drawn, expected_chances(logits, {})) < 1e-6


def test_tokens_at_neighbouring_positions_are_independent() -> None:
    logits = torch.zeros(4)
    drawn = draw_many(logits, {}, NUM_DRAWS)
    pairs = drawn[:-1] * 4 + drawn[1:]
    assert chance_of_worse(pairs, np.full(16, 1 / 16)) > 1e-3
    assert math.isclose(drawn.mean(), 1.5, abs_tol=0.02)
