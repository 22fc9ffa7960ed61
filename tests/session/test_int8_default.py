"""When 8-bit arithmetic is the default, and that the default model has earned it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from quire.backends.cpu.int8 import Int8Matrix
from quire.backends.cpu.native.library import library
from quire.executor.cpu.accuracy import Accuracy
from quire.executor.cpu.int8_probe import Int8Probe, int8_arithmetic
from quire.options import Options
from quire.session import int8_default
from quire.session.cpu_weights import load_cpu_weights
from quire.session.fingerprint import model_fingerprint
from quire.session.int8_default import (
    ARITHMETIC,
    KNOWN,
    Checked,
    Int8Default,
    int8_fits,
    measure,
    text_windows,
)
from quire.weights.load import load_int8_weights
from quire.weights.source import ModelFiles, locate
from tests.families.test_rope_config import YARN
from tests.weights.tiny import tiny_model, write_gguf

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
    return asked(files, steady, **options).why


def asked(files: ModelFiles, steady: bool = True, **options: object) -> Int8Default:
    return int8_fits(files, files.spec(), Options(**options), steady=steady)  # type: ignore[arg-type]


def fingerprint(files: ModelFiles) -> str:
    return model_fingerprint(files, files.spec(), ARITHMETIC)


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
    said: list[str] = []

    def found(_files: object, _spec: object, windows: list[list[int]]) -> Checked:
        assert "checking 8-bit arithmetic on this model, once" in said[-1]
        checked.append(sum(len(window) for window in windows))
        return Checked(GOOD)

    monkeypatch.setattr(int8_default, "KNOWN", {})
    monkeypatch.setattr(int8_default, "measure", found)
    monkeypatch.setattr(int8_default, "note", said.append)
    assert "96.0% of choices" in fits(files)
    assert "96.0% of choices" in fits(files)
    assert checked == [11 * 256]
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


@pytest.mark.parametrize("num_weights", [int(5e8), int(1.5e9), int(8e9), int(1e12)])
def test_a_large_model_is_checked_too_on_less_text(
    num_weights: int, files: ModelFiles, fast: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[list[int]] = []

    def found(_files: object, _spec: object, windows: list[list[int]]) -> Checked:
        checked.extend(windows)
        return Checked(GOOD)

    monkeypatch.setattr(int8_default, "KNOWN", {})
    monkeypatch.setattr(int8_default, "_num_weights", lambda _: num_weights)
    monkeypatch.setattr(int8_default, "measure", found)
    assert fits(files) != ""
    num_tokens = sum(map(len, checked))
    assert num_tokens >= 128
    assert num_tokens == 128 or num_tokens * num_weights <= int8_default.MOST_WORK


def test_a_model_that_cannot_be_checked_says_so(
    files: ModelFiles, fast: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(int8_default, "KNOWN", {})
    monkeypatch.setattr(int8_default, "note", said.append)
    monkeypatch.setattr(int8_default, "measure", lambda *_: pytest.fail("it was made"))
    monkeypatch.setattr(int8_default, "available_memory", lambda: 1000)
    assert fits(files) == ""
    monkeypatch.setattr(int8_default, "available_memory", lambda: 1 << 50)
    monkeypatch.setattr(int8_default, "text_windows", lambda *_: [])
    assert fits(files) == ""
    assert len(said) == 2
    assert all('runs in floats, which take longer. quantization="int8"' in line for line in said)
    assert "0.0 GB are free" in said[0] and "pydoc_data" in said[1]


def test_weights_that_were_checked_are_not_loaded_again(
    fast: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = write_gguf(tiny_model("llama", initializer_range=0.2), tmp_path / "m.gguf")
    files = locate(path)
    texts = [[i % 96 for i in range(j, j + 40)] for j in range(8)]
    monkeypatch.setattr(int8_default, "text_windows", lambda *_: texts)
    monkeypatch.setattr(Accuracy, "passes", True)
    found = asked(files)
    assert found.weights is not None
    config = SimpleNamespace(load_format="auto", quantization="int8")
    loaded = load_cpu_weights(files, files.spec(), config, at_hand=found.weights)  # type: ignore[arg-type]
    assert loaded is found.weights
    fresh = load_int8_weights(files, files.spec(), int8_arithmetic())
    assert loaded.keys() == fresh.keys()
    for name, weight in fresh.items():
        same = loaded[name]
        if isinstance(weight, Int8Matrix) and isinstance(same, Int8Matrix):
            assert torch.equal(weight.packed, same.packed)
        else:
            assert torch.equal(weight, same)  # type: ignore[arg-type]
    assert asked(files).weights is None  # the verdict is known now


def test_a_model_with_one_other_number_is_another_model(tmp_path: Path, fast: Path) -> None:
    """Norms, ends of matrices and settings: none of it may run on the old verdict."""
    model = tiny_model("llama")
    path = write_gguf(model, tmp_path / "m.gguf")
    before = {fingerprint(locate(path))}
    for name, place in {"model.norm.weight": 63, "model.layers.1.mlp.down_proj.weight": -1}.items():
        with torch.no_grad():
            model.state_dict()[name].view(-1)[place] += 1
        write_gguf(model, path)
        before.add(fingerprint(locate(path)))
    files = locate(path)
    for override in ({"rope_theta": 7.0}, {"rms_norm_eps": 0.5}, {"rope_scaling": YARN}):
        before.add(model_fingerprint(files, files.spec(override), ARITHMETIC))
    assert len(before) == 6
    assert fingerprint(locate(path)) in before


def test_a_damaged_verdict_counts_as_none(
    files: ModelFiles, fast: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(int8_default, "KNOWN", {})
    monkeypatch.setattr(int8_default, "measure", lambda *_: Checked(GOOD))
    (fast / "accuracy.json").write_text(json.dumps({fingerprint(files): {"agreement": "high"}}))
    assert fits(files) != ""


def test_a_slice_of_the_gate(files: ModelFiles) -> None:
    """500 tokens: too few for the gate's own limits on what is counted, so these are wider."""
    found = measure(files, files.spec(), text_windows(files, 2, 251), all_of_it=True).accuracy
    assert found.num_tokens == 500
    assert found.perplexity < 0.02
    assert found.divergence < 0.01
    assert found.agreement > 0.93
    assert found.clear_agreement > 0.99


@pytest.mark.long
def test_the_default_model_passes_its_gate(files: ModelFiles) -> None:
    found = measure(files, files.spec(), text_windows(files, 16, 251), all_of_it=True).accuracy
    assert found.num_tokens == 4000
    assert found.passes, found.text
    known = KNOWN[fingerprint(files)]
    assert found.divergence == pytest.approx(known.divergence, rel=0.1)
    assert found.agreement == pytest.approx(known.agreement, abs=0.005)
