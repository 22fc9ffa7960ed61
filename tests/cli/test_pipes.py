"""A reader of stdout that leaves: `quire show JOB | head -1`."""

from __future__ import annotations

import errno
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quire.cli import exits, terminal
from tests.jobs.driving import ENVIRONMENT, ROOT, read_lines, run, run_command, write_rows
from tests.jobs.stored import stored_job


@contextmanager
def abandoned() -> Iterator[int]:
    """A pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        yield writer
    finally:
        os.close(writer)


def unread(*words: object, **more: str) -> tuple[int, str]:
    """The exit code and stderr of a command, from a Python that tells all that it ignores."""
    with abandoned() as writer:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-X", "dev", *map(str, words)],
            cwd=ROOT, env={**ENVIRONMENT, **more}, stdout=writer, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], ["show", "{job}"], ["ls", "{folder}"]]
)
def test_a_verb_ends_in_silence_when_nobody_reads(words: list[str], tmp_path: Path) -> None:
    job = stored_job(tmp_path, [{"question": "1+1?"}] * 2, ["2", "2"])
    given = [word.format(job=job, folder=tmp_path) for word in words]
    assert unread("-m", "quire", *given) == (141, "")


def test_a_reader_may_leave_after_the_first_line(tmp_path: Path) -> None:
    rows = 3000  # more than a pipe holds
    job = stored_job(tmp_path, [{"question": "1+1?"}] * rows, ["two"] * rows)
    with subprocess.Popen(
        [sys.executable, "-m", "quire", "show", str(job), "-n", str(rows)],
        cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().split()[:2] == ["Rows", "3,000,"]
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (141, "")


def test_the_job_of_a_run_that_nobody_reads_is_whole(tmp_path: Path) -> None:
    source, output = write_rows(tmp_path / "in.jsonl", 4), tmp_path / "out.jsonl"
    arguments = run_command(source, output, "--json")
    assert unread(*arguments[1:])[0] == 141
    assert len(read_lines(output)) == 4
    again = run(arguments)
    assert again.returncode == 0 and '"before": 4' in again.stdout


def test_an_error_keeps_its_code_when_nobody_reads(tmp_path: Path) -> None:
    code, said = unread("-m", "quire", "show", tmp_path / "nothing")
    assert code == exits.USAGE and "nothing" in said


def test_another_pipe_that_breaks_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> None:
        with exits.reported():
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    def swallowed() -> None:
        """As the library of the command line does it."""
        with exits.reported():
            try:
                raise BrokenPipeError(errno.EPIPE, "Broken pipe")
            except BrokenPipeError:
                sys.exit(1)

    for breaks in (broken, swallowed):
        with pytest.raises(SystemExit, match=str(exits.IO_ERROR)):
            breaks()
        assert "Broken pipe" in capsys.readouterr().err


def test_a_reader_is_seen_to_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with open(reader, "rb") as source, open(writer, "w") as pipe:
        monkeypatch.setattr("sys.stdout", pipe)
        assert not terminal.reader_is_gone()
        source.close()
        assert terminal.reader_is_gone()
    mine, theirs = socket.socketpair()
    with theirs, mine, mine.makefile("w") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        assert not terminal.reader_is_gone()
        theirs.close()
        assert terminal.reader_is_gone()
    monkeypatch.setattr("sys.stdout", None)
    assert not terminal.reader_is_gone()
    monkeypatch.delattr(select, "poll")
    assert terminal.reader_is_gone()
