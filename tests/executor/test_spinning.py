"""Torch's threads spin shortly, unless the environment says otherwise; nothing is left behind."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from quire.executor.cpu.spinning import LOOKS, VARIABLE, short_spins

needs_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="Arm waits shortly as it is")


@pytest.fixture
def before_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    for name in (VARIABLE, "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)


@needs_x86
def test_the_environment_says_so_only_within(before_torch: None) -> None:
    with short_spins():
        assert os.environ[VARIABLE] == LOOKS
    assert VARIABLE not in os.environ
    with pytest.raises(ImportError), short_spins():
        raise ImportError
    assert VARIABLE not in os.environ


@pytest.mark.parametrize("name", [VARIABLE, "OMP_WAIT_POLICY"])
def test_what_the_environment_says_already_holds(
    name: str, before_torch: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "active")
    with short_spins():
        assert os.environ.get(VARIABLE) == ("active" if name == VARIABLE else None)
    assert os.environ[name] == "active"


def test_torch_that_is_there_already_is_left_alone(
    before_torch: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", sys)
    with short_spins():
        assert VARIABLE not in os.environ


@needs_x86
def test_libgomp_reads_it() -> None:
    """It prints what it works with when it is loaded, if asked to."""
    code = (
        "from quire.executor.cpu.spinning import short_spins\n"
        "with short_spins():\n"
        "    import quire.executor.probe\n"
    )
    unset = {k: v for k, v in os.environ.items() if k not in (VARIABLE, "OMP_WAIT_POLICY")}
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=unset | {"OMP_DISPLAY_ENV": "verbose"},
        cwd=Path(__file__).parents[2],
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    assert f"GOMP_SPINCOUNT = '{LOOKS}'" in run.stderr
