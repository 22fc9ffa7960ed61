"""The benchmark of structured outputs runs from its command line and says what it compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import structured
from quire.grammar.matcher import GrammarMatcher
from tests.tiny_llm import CONFIG


@pytest.mark.long
def test_it_compares_and_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import quire

    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    opened = quire.LLM

    def tiny(model: str, **options: object) -> quire.LLM:
        small = {"tokenizer": "smollm2", "load_format": "dummy", "kv_cache_memory_bytes": 8 << 20}
        return opened(model, dtype="float32", **small, **options)

    monkeypatch.setattr(quire, "LLM", tiny)
    monkeypatch.setattr(structured, "ANSWER", structured.FORM)  # a random model fills long texts
    forced, report = GrammarMatcher.forced, tmp_path / "out.json"
    words = ["--model", str(tmp_path), "--rows", "2", "--runs", "1", "--json", str(report)]
    found = structured.main([*words, "--only", "masks", "jump_ahead"])
    assert GrammarMatcher.forced is forced
    assert [one.name for one in found] == ["masks", "jump ahead"]
    assert all(one.ratio > 0 and one.tokens > 20 for one in found)
    assert "jumping" in capsys.readouterr().out
    written = json.loads(report.read_text())
    assert [one["name"] for one in written["compared"]] == ["masks", "jump ahead"]
    assert written["compared"][0]["ratio"] == found[0].ratio


def test_forms_have_long_fixed_parts() -> None:
    assert len("".join(structured.FORM["properties"])) > 150
