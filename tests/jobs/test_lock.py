"""Two writers: exactly one wins, and the other says who does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from quire.errors import JobLocked
from quire.jobs.store.lock import JobLock, holder
from tests.jobs.driving import ENVIRONMENT, ROOT

RACER = """
import sys, time
from pathlib import Path
from quire.errors import JobLocked
from quire.jobs.store.lock import JobLock
for turn in range(int(sys.argv[2])):
    job = Path(sys.argv[1]) / str(turn)
    sys.stdin.readline()
    try:
        lock = JobLock.take(job)
        print("won", lock.epoch, flush=True)
    except JobLocked as error:
        assert "is writing" in str(error)
        print("lost", 0, flush=True)
"""


def test_of_two_that_start_at_once_exactly_one_writes(tmp_path: Path, long_mode: bool) -> None:
    turns = 200 if long_mode else 40
    for turn in range(turns):
        (tmp_path / str(turn)).mkdir()
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(tmp_path), str(turns)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=ENVIRONMENT,
        )
        for _ in range(2)
    ]
    try:
        for turn in range(turns):
            for racer in racers:
                racer.stdin.write("go\n")
                racer.stdin.flush()
            said = sorted(racer.stdout.readline().split() for racer in racers)
            assert said == [["lost", "0"], ["won", "1"]], turn
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()


def test_the_lock_names_its_holder_and_ends_with_it(tmp_path: Path) -> None:
    assert holder(tmp_path) is None
    first = JobLock.take(tmp_path)
    held = holder(tmp_path)
    assert held is not None and held.epoch == 1
    with pytest.raises(JobLocked, match=f"process {held.pid} on {held.host}"):
        JobLock.take(tmp_path)
    first.release()
    assert holder(tmp_path) is None
    second = JobLock.take(tmp_path)
    assert second.epoch == 2
    second.release()


def test_a_stopped_writer_keeps_its_job(tmp_path: Path) -> None:
    """SIGSTOP is not death: whoever comes meanwhile is refused, and not let in beside it."""
    code = (
        "import os, signal, sys; from pathlib import Path;"
        "from quire.jobs.store.lock import JobLock;"
        "lock = JobLock.take(Path(sys.argv[1])); print('held', flush=True);"
        "os.kill(os.getpid(), signal.SIGSTOP)"
    )
    paused = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=ENVIRONMENT,
    )
    try:
        assert paused.stdout.readline() == "held\n"
        with pytest.raises(JobLocked, match=f"process {paused.pid}"):
            JobLock.take(tmp_path)
    finally:
        paused.kill()
        paused.communicate()
    JobLock.take(tmp_path).release()
