"""How long answers become, learned from those that finished."""

from __future__ import annotations

import numpy as np
import pytest

from quire.plan.lengths import MEMORY, OutputLengths, is_certain
from tests.plan.making import request

EOS = frozenset({2})


def test_until_something_is_known_max_tokens_is_expected() -> None:
    assert OutputLengths().expected(request([1], max_tokens=77, eos_ids=EOS)) == 77


def test_what_only_max_tokens_can_end_is_certain_whatever_others_did() -> None:
    lengths = OutputLengths()
    for _ in range(100):
        lengths.observe(request([1], max_tokens=50, eos_ids=EOS), 3, stopped=True)
    certain = request([1], max_tokens=50)
    assert is_certain(certain) and lengths.expected(certain) == 50
    assert not is_certain(request([1], stop=["end"]))


def test_the_mean_under_any_limit_follows_from_lengths_and_cut_off_answers() -> None:
    """Answers of 1 .. 200 tokens, all equally likely, seen only through a limit of 100."""
    rng = np.random.default_rng(0)
    lengths = OutputLengths()
    limited = request([1], max_tokens=100, eos_ids=EOS)
    true = rng.integers(1, 201, 4000)
    for length in true.tolist():
        lengths.observe(limited, min(length, 100), stopped=length < 100)
    for limit in (10, 60, 100):
        expected = np.minimum(true, limit).mean()
        found = lengths.expected(request([1], max_tokens=limit, eos_ids=EOS))
        assert found == pytest.approx(expected, rel=0.05)
    # Beyond the limit nothing is known: half are still going, and may go on.
    beyond = lengths.expected(request([1], max_tokens=1000, eos_ids=EOS))
    assert beyond == pytest.approx(np.minimum(true, 100).mean() + 0.5 * 900, rel=0.05)


def test_min_tokens_is_never_undercut() -> None:
    lengths = OutputLengths()
    for _ in range(200):
        lengths.observe(request([1], max_tokens=50, eos_ids=EOS), 3, stopped=True)
    assert lengths.expected(request([1], max_tokens=50, min_tokens=20, eos_ids=EOS)) == 20


def test_old_answers_are_forgotten() -> None:
    lengths = OutputLengths()
    one = request([1], max_tokens=1000, eos_ids=EOS)
    for length in [500] * 100 + [10] * (MEMORY + 300):
        lengths.observe(one, length, stopped=True)
    assert lengths.expected(one) == pytest.approx(10, abs=2)
