"""Stopping a job that runs in the background: what its shell ignores it ignores, and SIGTERM ends
it in order."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from quire.errors import JobStopped
from quire.jobs.store.lock import JobLock
from quire.jobs.supervise.stopping import StopSignals
from tests.jobs.driving import (
    ENVIRONMENT,
    ROOT,
    journal_bytes,
    run,
    run_command,
    started,
    wait_until,
    write_rows,
)


@pytest.fixture
def ignored() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_ctrl_c_that_is_ignored_stays_ignored(ignored: None) -> None:
    with StopSignals() as signals:
        signal.raise_signal(signal.SIGINT)
        assert not signals.asked()
        signal.raise_signal(signal.SIGTERM)
        assert signals.asked() and signals.received == signal.SIGTERM
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


def test_both_are_caught_and_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    for number in (signal.SIGINT, signal.SIGTERM):
        with StopSignals() as signals:
            signal.raise_signal(number)
            assert signals.asked() and signals.received == number
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_closed_terminal_stops_a_job_unless_it_is_to_outlive_it() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests may run under nohup
    try:
        with StopSignals() as signals:
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGHUP)  # told twice, by the shell and by the kernel
            assert signals.received == signal.SIGHUP
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with StopSignals() as signals:
            signal.raise_signal(signal.SIGHUP)
            assert not signals.asked()
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_that_is_read_takes_a_stop_for_its_own_fault(number: signal.Signals) -> None:
    with StopSignals() as signals:
        with pytest.raises(JobStopped, match="stopped cleanly"), signals.at_once():
            try:
                signal.raise_signal(number)
            except Exception:  # as around a value of Arrow's
                pytest.fail("the stop was taken for an error")
        with pytest.raises(JobStopped), signals.at_once():
            pytest.fail("asked before, and begun all the same")


def test_a_job_in_the_background_stops_on_sigterm_and_goes_on(
    ignored: None, tmp_path: Path
) -> None:
    """As `nohup quire run ... &` in a script."""
    source, output = write_rows(tmp_path / "in.jsonl", 300), tmp_path / "out.jsonl"
    arguments = run_command(source, output, model="fake:delay=0.02:rows=32")  # over a second
    home = tmp_path / "out.jsonl.quire"
    with started(["nohup", *arguments]) as process:
        assert wait_until(lambda: journal_bytes(home) > 0)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 75 and "To continue:" in said
    assert run(run_command(source, output)).returncode == 2  # another model: still the same job
    assert run(arguments).returncode == 0
    assert len(output.read_text().splitlines()) == 300


def hears_sigterm(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    [caught] = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")]
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.parametrize("more", [(), ("--join",)])
def test_a_job_that_has_not_begun_stops_on_sigterm(tmp_path: Path, more: tuple[str, ...]) -> None:
    """Its input does not end, or another worker is about to begin the job."""
    source, output = write_rows(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"
    (home := tmp_path / "out.jsonl.quire").mkdir()
    lock = JobLock.take(home) if more else nullcontext()
    arguments = run_command(source if more else "-", output, *more)
    with lock, started(arguments, stdin=subprocess.PIPE) as process:
        assert wait_until(lambda: hears_sigterm(process.pid))
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, "stopped cleanly" in said) == (75, True), said
    assert not output.exists()


@pytest.mark.long
def test_tests_do_not_depend_on_how_the_shell_was_started(ignored: None) -> None:
    """The tests that send Ctrl-C, in a process that was born with it ignored."""
    chosen = "tests/test_llm.py::test_ctrl_c_hands_over_what_was_finished_and_leaves_the_llm_usable"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n0", chosen],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("kind", ["full disk", "pipe", "terminal", "none"])
def test_a_job_goes_on_where_nobody_hears_it(tmp_path: Path, kind: str) -> None:
    """Its log is on a full disk, its reader is gone, its terminal was closed, or it has none."""
    source, output = write_rows(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"
    arguments = [word for word in run_command(source, output) if word != "--quiet"]
    if kind == "full disk":
        told = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, told = pty.openpty() if kind == "terminal" else os.pipe()
        os.close(reader)
    command = ["sh", "-c", 'exec 0<&- 1>&- 2>&-; exec "$@"', "sh"] if kind == "none" else []
    done = subprocess.run(
        [*command, *arguments], cwd=ROOT, env=ENVIRONMENT, stderr=told, check=False, timeout=200
    )
    os.close(told)
    assert done.returncode == 0
    assert len(output.read_text().splitlines()) == 3


def test_a_closed_stdin_is_no_input(tmp_path: Path) -> None:
    command = ["sh", "-c", 'exec 0<&-; exec "$@"', "sh", *run_command("-", tmp_path / "o.jsonl")]
    done = run(command)
    assert done.returncode == 2 and "stdin is closed" in done.stderr
