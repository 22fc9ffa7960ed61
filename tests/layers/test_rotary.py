"""Rotary angles, and how they are stretched."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from quire.layer_parts.rope import FactorRope, LinearRope, Llama3Rope
from quire.layer_plan import Rope
from quire.layers.rotary import Rotary, frequencies

ROPE = Rope(theta=100.0, dims=8)


def test_plain_frequencies_fall_by_powers_of_theta() -> None:
    expected = [1.0, 100**-0.25, 0.1, 100**-0.75]
    assert frequencies(ROPE).tolist() == pytest.approx(expected)


def test_linear_scaling_divides_every_frequency() -> None:
    rope = dataclasses.replace(ROPE, scaling=LinearRope(4.0))
    assert torch.allclose(frequencies(rope), frequencies(ROPE) / 4)


def test_llama3_keeps_fast_frequencies_and_divides_slow_ones() -> None:
    # Turns within 40 positions: 6.4, 2.0, 0.64, 0.2; above 4 is fast, below 1 is slow.
    scaling = Llama3Rope(8.0, 1.0, 4.0, 40)
    made = frequencies(dataclasses.replace(ROPE, scaling=scaling))
    plain = frequencies(ROPE)
    kept = (40 * float(plain[1]) / (2 * math.pi) - 1) / 3
    middle = kept * float(plain[1]) + (1 - kept) * float(plain[1]) / 8
    assert made.tolist() == pytest.approx(
        [float(plain[0]), middle, float(plain[2]) / 8, float(plain[3]) / 8]
    )


def test_factors_of_a_file_divide_one_frequency_each() -> None:
    rope = dataclasses.replace(ROPE, scaling=FactorRope((1.0, 2.0, 4.0, 8.0)))
    expected = frequencies(ROPE) / torch.tensor([1.0, 2.0, 4.0, 8.0])
    assert torch.allclose(frequencies(rope), expected)


def test_the_table_has_every_position() -> None:
    rotary = Rotary([(ROPE, 8)], 100, torch.device("cpu"))
    [(cos, sin)] = rotary(torch.tensor([0, 99]))
    angles = 99 * frequencies(ROPE)
    assert torch.equal(cos[0], torch.ones(4)) and torch.equal(sin[0], torch.zeros(4))
    assert torch.allclose(cos[1], angles.cos()) and torch.allclose(sin[1], angles.sin())
