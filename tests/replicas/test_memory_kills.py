"""Who ended an engine: the kernel, for memory; we; or somebody else."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from quire.replicas import memory_kills
from quire.replicas.engine_process import EngineProcess
from quire.replicas.memory_kills import MemoryKills

KILLED, TERMINATED, CRASHED = -signal.SIGKILL, -signal.SIGTERM, -signal.SIGSEGV


def test_a_kill_is_foreign_where_the_kernel_counts_and_did_not_count_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = tmp_path / "vmstat"
    monkeypatch.setattr(memory_kills, "_COUNTERS", (tmp_path / "missing", counter))
    unknown = MemoryKills()
    assert not unknown.is_foreign(KILLED) and not unknown.is_why(KILLED)
    counter.write_text("oom_kill 3\n")
    known = MemoryKills()
    assert known.is_foreign(KILLED) and known.is_foreign(TERMINATED)
    assert not known.is_foreign(CRASHED) and not known.is_foreign(1)
    counter.write_text("oom_kill 4\n")
    assert known.is_why(KILLED) and not known.is_foreign(KILLED) and not known.is_why(CRASHED)


@pytest.mark.parametrize("is_ours", [True, False])
def test_an_engine_knows_whether_we_killed_it(is_ours: bool) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    engine = EngineProcess({"kind": "open"}, command=command, hear=lambda line: None)
    if not is_ours:
        os.kill(engine.pid, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while not engine.ended and time.monotonic() < deadline:
            engine.poll(0.1)
    assert engine.end() == KILLED and engine.killed == is_ours
