"""The benchmark of scoring counts what it says it counts, on a tiny shape."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import scoring
from tests.tiny_llm import tiny_llm


def test_it_counts_tokens_and_operations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scoring, "LLM", lambda model, **options: tiny_llm(Path(model), **options))
    given = ["--model", str(tmp_path), "--contexts", "3", "--length", "40", "--tokens", "3", "1"]
    alone, three, one = scoring.main([*given, "--json"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["continuation_tokens"] for line in lines] == [0, 3, 1]
    assert alone.computed_tokens == 3 * 40
    assert three.computed_tokens == 3 * (40 + 4 * 2)
    assert one.computed_tokens == alone.computed_tokens and one.operations == alone.operations
    assert three.operations > alone.operations
    assert "continuations of 3" in three.line(alone) and "contexts alone" in alone.line(alone)
