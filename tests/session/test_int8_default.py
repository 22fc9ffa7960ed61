"""When 8-bit arithmetic is the default, and that the default model has earned it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from quire.executor.accuracy import Accuracy
from quire.executor.int8_probe import Int8Probe
from quire.kernels.native.library import library
from quire.options import Options
from quire.session import int8_default
from quire.session.int8_default import KNOWN, fingerprint, int8_fits, measure, text_windows
from quire.weights.source import ModelFiles, locate

GOOD = Accuracy(1020, 0.002, 0.004, 0.96, 1.0)
BAD = Accuracy(1020, 0.05, 0.004, 0.9, 1.0)


@pytest.fixture
def files(default_model: Path) -> ModelFiles:
    return locate(str(default_model))


@pytest.fixture
def fast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, on a machine where 8-bit products are 3 times as fast."""
    library()
    monkeypatch.setenv("QUIRE_HOME", str(tmp_path))
    monkeypatch.setattr(int8_default, "int8_probe", lambda: Int8Probe((), 3.0))
    return tmp_path


def fits(files: ModelFiles, steady: bool = True, **options: object) -> str:
    return int8_fits(files, files.spec(), Options(**options), steady=steady)  # type: ignore[arg-type]


def test_the_default_model_is_known_and_passes(files: ModelFiles, fast: Path) -> None:
    assert KNOWN[fingerprint(files)].passes
    assert "faster than floats" in fits(files)


def test_whoever_asks_for_something_gets_that(files: ModelFiles, fast: Path) -> None:
    assert fits(files, dtype="float32") == ""
    assert fits(files, quantization="none") == ""
    assert fits(files, load_format="dummy") == ""
    assert fits(files, steady=False) == ""


def test_what_is_not_faster_is_not_taken(
    files: ModelFiles, fast: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(int8_default, "int8_probe", lambda: Int8Probe((), 1.1))
    assert fits(files) == ""


def test_an_unknown_model_is_checked_once(
    files: ModelFiles, fast: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[int] = []

    def found(_files: object, _spec: object, windows: list[list[int]]) -> Accuracy:
        checked.append(sum(len(window) for window in windows))
        return GOOD

    monkeypatch.setattr(int8_default, "KNOWN", {})
    monkeypatch.setattr(int8_default, "measure", found)
    assert "96.0% of choices" in fits(files)
    assert "96.0% of choices" in fits(files)
    assert checked == [1024]
    assert json.loads((fast / "accuracy.json").read_text()) == {fingerprint(files): asdict(GOOD)}


def test_a_model_that_fails_its_gate_stays_in_floats_and_that_is_said(
    files: ModelFiles, fast: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(int8_default, "KNOWN", {fingerprint(files): BAD})
    monkeypatch.setattr(int8_default, "note", said.append)
    assert fits(files) == ""
    assert len(said) == 1
    assert "not accurate enough" in said[0]
    assert "+5.0%" in said[0]


def test_a_check_that_would_take_too_long_is_not_made(
    files: ModelFiles, fast: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(int8_default, "KNOWN", {})
    monkeypatch.setattr(int8_default, "MOST_WORK", 1e9)
    monkeypatch.setattr(int8_default, "measure", lambda *_: pytest.fail("it was made"))
    assert fits(files) == ""


def test_a_damaged_verdict_counts_as_none(
    files: ModelFiles, fast: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(int8_default, "KNOWN", {})
    monkeypatch.setattr(int8_default, "measure", lambda *_: GOOD)
    (fast / "accuracy.json").write_text(json.dumps({fingerprint(files): {"agreement": "high"}}))
    assert fits(files) != ""


def test_a_slice_of_the_gate(files: ModelFiles) -> None:
    """500 tokens: too few for the gate's own limits on what is counted, so these are wider."""
    found = measure(files, files.spec(), text_windows(files, 2, 251))
    assert found.num_tokens == 500
    assert found.perplexity < 0.02
    assert found.divergence < 0.01
    assert found.agreement > 0.93
    assert found.clear_agreement > 0.99


@pytest.mark.long
def test_the_default_model_passes_its_gate(files: ModelFiles) -> None:
    found = measure(files, files.spec(), text_windows(files, 16, 251))
    assert found.num_tokens == 4000
    assert found.passes, found.text
    known = KNOWN[fingerprint(files)]
    assert found.divergence == pytest.approx(known.divergence, rel=0.1)
    assert found.agreement == pytest.approx(known.agreement, abs=0.005)
