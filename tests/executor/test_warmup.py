"""Kernels that are compiled beside the first steps: found, but never waited for."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

import pytest
import torch

from quire.executor.precompile import warmup
from quire.executor.precompile.warmup import Warmup
from tests.jobs.driving import wait_until


class Calls:
    """Stands in for the calls of a model: two at once, then three one after the other."""

    def __init__(self, *given: Any) -> None:
        self.made: list[str] = []
        self.go = threading.Event()

    def all(self) -> list[Any]:
        return [lambda: self.made.append("a"), lambda: self.made.append("b")]

    def of_torch(self) -> list[Any]:
        return []

    def driver(self) -> None:
        pass

    def later(self) -> list[Any]:
        return [self._slow, lambda: self.made.append("d"), lambda: self.made.append("e")]

    def _slow(self) -> None:
        self.go.wait(10)
        self.made.append("c")


def finish(warm: Warmup) -> None:
    for thread in warm._rest:
        thread.join(10)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    made = Calls()
    monkeypatch.setattr(warmup, "LOADED_AFTER", 60.0)
    monkeypatch.setattr(warmup, "REST_AFTER", 0.0)
    monkeypatch.setattr(warmup, "Calls", lambda *given: made)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    return made


def test_every_thread_loads_onto_the_device_of_the_engine(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank's engine may be on another one than the first, where threads begin."""
    devices = threading.local()
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "set_device", lambda number: setattr(devices, "own", number))
    found: list[int] = []
    call = lambda: found.append(getattr(devices, "own", 0))  # noqa: E731
    calls.all = lambda: [call] * 3  # type: ignore[method-assign]
    calls.later = lambda: [call] * 2  # type: ignore[method-assign]
    warm = Warmup(None, None)
    warm.wait()
    finish(warm)
    assert found == [3] * 5


def test_the_first_steps_wait_for_their_own_kernels_alone(calls: Calls) -> None:
    warm = Warmup(None, None)
    warm.wait()
    assert sorted(calls.made) == ["a", "b"]
    calls.go.set()
    finish(warm)
    assert calls.made[2:] == ["c", "d", "e"]


def test_stopping_waits_for_the_kernel_at_hand_and_begins_no_other(calls: Calls) -> None:
    warm = Warmup(None, None)
    warm.wait()
    threading.Timer(0.05, calls.go.set).start()
    warm.stop()
    assert calls.made[2:] in ([], ["c"])
    warm.stop()


def test_kernels_that_were_never_compiled_are_compiled_several_at_once(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warmup, "LOADED_AFTER", -1.0)
    warm = Warmup(None, None)
    warm.wait()
    while "e" not in calls.made:  # beside the slow one
        time.sleep(0.01)
    assert "c" not in calls.made and len(warm._rest) > 1
    calls.go.set()
    finish(warm)
    assert sorted(calls.made) == ["a", "b", "c", "d", "e"]


def test_a_failing_kernel_is_an_error_of_the_start(calls: Calls) -> None:
    def broken() -> None:
        raise ValueError("does not compile")

    calls.all = lambda: [broken]  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="does not compile"):
        Warmup(None, None).wait()


def test_a_full_device_only_ends_what_was_not_asked_for(calls: Calls) -> None:
    def full() -> None:
        raise torch.OutOfMemoryError("nothing left")

    calls.later = lambda: [full, lambda: calls.made.append("never")]  # type: ignore[method-assign]
    warm = Warmup(None, None)
    warm.wait()
    finish(warm)
    assert "never" not in calls.made


class Elsewhere:
    """Stands in for the process that compiles: done when it is told."""

    def __init__(self) -> None:
        self.first, self.rest, self.told = threading.Event(), threading.Event(), threading.Event()

    def wait(self) -> None:
        self.first.wait(10)

    def wait_for_later(self) -> None:
        self.rest.wait(10)

    def go_on(self) -> None:
        self.told.set()

    def end(self) -> None:
        self.first.set()
        self.rest.set()


def test_kernels_that_another_process_compiles_are_waited_for(calls: Calls) -> None:
    elsewhere = Elsewhere()
    calls.of_torch = lambda: [lambda: calls.made.append("torch")]  # type: ignore[method-assign]
    warm = Warmup(None, None, elsewhere)
    assert wait_until(lambda: bool(calls.made))
    assert calls.made == ["torch"], "what needs no kernel of ours waits for nobody"
    elsewhere.first.set()
    warm.wait()
    assert sorted(calls.made) == ["a", "b", "torch"]
    calls.go.set()
    time.sleep(0.1)
    assert len(calls.made) == 3, "the rest is being compiled still"
    calls.go.clear()
    elsewhere.rest.set()
    assert not elsewhere.told.is_set(), "features come when all else is there"
    calls.go.set()
    finish(warm)
    assert calls.made[3:] == ["c", "d", "e"] and elsewhere.told.is_set()


def test_stopping_ends_the_process_that_compiles(calls: Calls) -> None:
    elsewhere = Elsewhere()
    elsewhere.first.set()
    warm = Warmup(None, None, elsewhere)
    warm.wait()
    warm.stop()
    assert elsewhere.rest.is_set() and sorted(calls.made) == ["a", "b"]
    assert not elsewhere.told.is_set()


AT_EXIT = """
import time, torch
torch.cuda.current_device = lambda: 0
torch.cuda.set_device = lambda number: None
from quire.executor.precompile import warmup
from types import SimpleNamespace
later = [lambda: time.sleep(0.2)] * 5000
warmup.Calls = lambda *given: SimpleNamespace(
    all=lambda: [], later=lambda: later, of_torch=lambda: [], driver=lambda: None
)
warmup.Warmup(None, None).wait()
print("done", flush=True)
"""


def test_a_program_ends_when_it_is_done() -> None:
    """All of them would take 1,000 seconds; on a busy machine, importing torch takes a minute."""
    run = subprocess.run(
        [sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=200, check=True
    )
    assert run.stdout == "done\n" and not run.stderr
