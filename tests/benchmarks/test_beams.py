"""The benchmark of beam search compares two ways that find the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.beams import make_prompts, measure
from quire.scheduler.beam_rule import SearchRules
from tests.tiny_llm import tiny_llm


def test_both_ways_find_the_same_and_one_computes_less(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with tiny_llm(tmp_path) as llm:
        prompts = make_prompts(3, 20, 1000)
        engine, again = measure(llm, prompts, SearchRules(3, 6), turn=2)
    assert "0 of 3 searches differ" in capsys.readouterr().err
    # The prompt, and a token of every beam for every step but the last.
    assert engine.computed_tokens == 3 * (20 + 3 * 5)
    assert again.computed_tokens > 2 * engine.computed_tokens
