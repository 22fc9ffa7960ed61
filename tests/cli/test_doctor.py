"""`quire doctor` says what is there and what is not, and never falls over what is missing."""

from __future__ import annotations

import ctypes
import json
import socket
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any, NoReturn

import pytest

from quire.cli import exits, main
from quire.cli.doctor import _python


def findings(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, dict[str, str]]]:
    """The exit code, and each finding by its name."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--json"])
    listed = json.loads(capsys.readouterr().out)
    return int(ended.value.code or 0), {finding["name"]: finding for finding in listed}


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "create_connection", refuse)


def test_a_machine_with_everything_is_fine(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = findings(capsys)
    assert code == 0
    assert set(found) == {
        "python", "packages", "torch", "device", "kernels", "cuda", "disk", "hub", "models",
    }  # fmt: skip
    assert found["torch"]["state"] == found["device"]["state"] == "ok"


def test_an_unreachable_hub_and_an_empty_home_are_notes_with_the_way_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("QUIRE_HOME", str(tmp_path / "not" / "there" / "yet"))
    code, found = findings(capsys)
    assert code == 0
    assert "quire pull smollm2" in found["hub"]["text"]
    assert "quire pull smollm2" in found["models"]["text"]
    assert "not/there/yet" in found["disk"]["text"]


@pytest.mark.parametrize(("system", "state"), [("Linux", "ok"), ("Darwin", "note")])
def test_where_quire_is_not_tested_it_says_so(
    system: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.system", lambda: system)
    found = _python()
    assert found.state == state and ("tested on Linux alone" in found.text) == (state == "note")


def test_offline_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE" in findings(capsys)[1]["hub"]["text"]


def test_a_missing_package_is_named_and_costs_the_exit_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if name in ("torch", "tokenizers"):
            raise PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr("importlib.metadata.version", version)
    code, found = findings(capsys)
    assert code == exits.UNAVAILABLE
    assert found["packages"]["text"] == "pip install tokenizers"
    assert found["torch"]["state"] == "missing"


def test_a_torch_that_does_not_import_is_reported_not_raised(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("quire.executor.probe", "quire.backends.cpu.native.library"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    code, found = findings(capsys)
    assert code == exits.UNAVAILABLE
    assert found["device"]["state"] == "missing"
    assert found["cuda"]["state"] == found["kernels"]["state"] == "note"


def test_it_says_which_kernels_the_cpu_computes_with(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from quire.backends.cpu.native import library

    none = library.Loaded(None, "torch only: no C compiler is there")
    monkeypatch.setattr(library, "loaded", lambda: none)
    code, found = findings(capsys)
    assert code == 0 and found["kernels"]["state"] == "note"
    assert "no C compiler" in found["kernels"]["text"] and "gcc" in found["kernels"]["text"]
    some = library.Loaded(ctypes.CDLL(None), "native (NEON; torch's threads)")
    monkeypatch.setattr(library, "loaded", lambda: some)
    assert findings(capsys)[1]["kernels"]["text"] == "native (NEON; torch's threads)"


def test_an_old_torch_is_too_old(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.10.1+cpu")
    code, found = findings(capsys)
    assert code == exits.UNAVAILABLE
    assert "2.10.1" in found["torch"]["text"] and "2.11" in found["torch"]["text"]
