"""A process that answers line by line: lines of any length, and none costs more than its time."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire.base.line_child import LineChild

SECONDS = 30.0  # for a start and a line, on a machine however busy


@pytest.fixture
def child() -> Iterator[LineChild]:
    made = LineChild("quire.evals.scoring.pattern_child")
    try:
        setting = {"pattern": "(x+)", "seconds": SECONDS}
        assert made.exchange(json.dumps(setting), SECONDS) is not None
        yield made
    finally:
        made.end()


def test_a_line_that_no_pipe_holds_is_written_and_read_whole(child: LineChild) -> None:
    text = "x" * 1_000_000
    asked = json.dumps({"text": text, "last": False})
    assert child.exchange(asked, SECONDS) == {"found": text}


def test_a_child_that_does_not_read_costs_no_more_than_its_time(child: LineChild) -> None:
    os.kill(child._process.pid, signal.SIGSTOP)
    late = threading.Timer(SECONDS, child._process.kill)  # which ends a write that would not end
    late.start()
    begun = time.monotonic()
    assert child.exchange("x" * 1_000_000, 0.2) is None
    assert time.monotonic() - begun < SECONDS
    late.cancel()


def test_a_child_that_is_gone_answers_nothing(child: LineChild) -> None:
    child._process.kill()
    child._process.wait()
    assert child.exchange("x" * 1_000_000, SECONDS) is None
    assert child.status() == -signal.SIGKILL


@pytest.mark.parametrize(
    "printing",
    ["print('ready to serve'); print(1)", "print('on {host}', end='{', flush=True)"],
)
def test_what_a_python_prints_when_it_starts_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printing: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(printing)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    child = LineChild("quire.evals.scoring.pattern_child")
    try:
        assert child.exchange(json.dumps({"pattern": "(x+)", "seconds": SECONDS}), SECONDS) == {}
        found = child.exchange(json.dumps({"text": "axx", "last": False}), SECONDS)
        assert found == {"found": "xx"}
    finally:
        child.end()
