"""The benchmark of guessing runs from its command line, and stops where an answer changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import speculation
from tests.tiny_llm import CONFIG


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A command line for a tiny model; a random model copies nothing, so any guess is made."""
    import quire
    from quire.scheduler.pass_times import PassTimes

    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    opened = quire.LLM

    def tiny(model: str, **options: object) -> quire.LLM:
        small = {"tokenizer": "smollm2", "load_format": "dummy", "batch_invariant": True}
        return opened(model, dtype="float32", **{**options, **small})

    monkeypatch.setattr(quire, "LLM", tiny)
    monkeypatch.setattr(PassTimes, "line", lambda times: (1.0, 0.0))
    return ["--model", str(tmp_path), "--rows", "2", "--runs", "1", "--tokens", "20"]


def test_both_engines_write_the_same_and_are_compared(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "out.json"
    found = speculation.main([*words, "--json", str(report)])
    assert [one.name for one in found] == ["copying", "prose"]
    assert all(one.ratio > 0 and one.tokens == 40 and one.plain_steps >= 20 for one in found)
    assert found[0].guessed > 0
    assert "accepted" in capsys.readouterr().out
    assert json.loads(report.read_text())["compared"][0]["guessed"] == found[0].guessed


def test_a_changed_answer_is_no_result(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    run, calls = speculation.run, iter(range(100))
    monkeypatch.setattr(speculation, "run", lambda llm, work: (run(llm, work)[0], [[next(calls)]]))
    with pytest.raises(SystemExit, match="changed"):
        speculation.main([*words, "--only", "copying"])
