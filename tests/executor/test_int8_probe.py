"""Which path of 8-bit products is taken, and that it is found out only once."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from quire.backends.cpu.int8 import TorchInt8
from quire.backends.cpu.native.library import Loaded, library
from quire.backends.cpu.native_int8 import Choice, NativeInt8, paths_here
from quire.executor.cpu import int8_probe as probe
from quire.executor.probe import machine_key


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own home; the library that was compiled into the usual one is loaded before."""
    library()
    monkeypatch.setenv("QUIRE_HOME", str(tmp_path))
    monkeypatch.setattr(probe, "SECONDS_PER_TRY", 1e-4)
    return tmp_path


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    calls: list[int] = []
    measured = probe._measured

    def count(native: object) -> probe.Int8Probe:
        calls.append(1)
        return measured(native)

    monkeypatch.setattr(probe, "_measured", count)
    return calls


def test_every_choice_is_a_path_of_this_processor() -> None:
    found = probe.int8_probe()
    assert found.gain > 0
    native = library()
    if native is None:
        assert found.choices == ()
        assert isinstance(probe.int8_arithmetic(), TorchInt8)
    else:
        assert [choice.rows for choice in found.choices] == list(probe.ROWS)
        assert {choice.path for choice in found.choices} <= set(paths_here(native))
        assert isinstance(probe.int8_arithmetic(), NativeInt8)


def test_it_is_measured_once(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    calls = counted(monkeypatch)
    first = probe.int8_probe()
    again = probe.int8_probe()
    assert (again.choices, round(first.gain, 2)) == (first.choices, again.gain)
    assert len(calls) == 1
    assert (home / "int8.json").stat().st_mode & 0o777 == 0o600


def test_what_was_measured_holds_for_every_process(home: Path) -> None:
    """The library is loaded by a descriptor, whose number is another in the next process."""
    probe.int8_probe()
    [key] = json.loads((home / "int8.json").read_text())
    hashes = r"quire-[0-9a-f]{20}-[0-9a-f]{20}"
    assert re.fullmatch(rf"{machine_key()}-({hashes if library() else 'torch'})", key)


@pytest.mark.parametrize(
    "entry",
    [None, 3, [], {}, {"choices": [[1, "amx9"]], "gain": 2}, {"choices": [[1]], "gain": 1}],
)
def test_what_cannot_be_is_measured_over(
    monkeypatch: pytest.MonkeyPatch, home: Path, entry: object
) -> None:
    probe.int8_probe()
    key = next(iter(json.loads((home / "int8.json").read_text())))
    (home / "int8.json").write_text(json.dumps({key: entry}))
    calls = counted(monkeypatch)
    probe.int8_probe()
    assert len(calls) == 1


def test_without_a_library_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "loaded", lambda: Loaded(None, "no compiler"))
    found = probe.int8_probe()
    assert found.choices == ()
    assert found.text == "8-bit products: torch"
    assert isinstance(probe.int8_arithmetic(), TorchInt8)


def test_the_choice_is_one_line() -> None:
    rows = (1, 4, 16, 64)

    def said(*paths: str) -> str:
        choices = tuple(Choice(r, p) for r, p in zip(rows, paths, strict=True))
        return probe.Int8Probe(choices, 1.0).text

    assert said("amx", "amx", "amx", "amx") == "8-bit products: amx"
    assert said("vnni", "vnni", "amx", "amx") == (
        "8-bit products: vnni for 1 to 4 rows, amx for 5 rows and more"
    )
    assert said("vnni", "amx", "amx", "amx") == (
        "8-bit products: vnni for 1 row, amx for 2 rows and more"
    )
