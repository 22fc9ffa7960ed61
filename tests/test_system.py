"""Systems other than Linux: what stands in for what they lack."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from quire.base import system
from quire.errors import NotSupported
from tests.jobs.driving import ENVIRONMENT, ROOT, read_lines, run_command, write_rows
from tests.tiny_llm import tiny_llm

NO_LINUX = {**ENVIRONMENT, "PYTHONPATH": f"{ROOT / 'tests' / 'no_linux'}{os.pathsep}{ROOT}"}
# What the command of that name prints on macOS, some lines left out.
VM_STAT = """Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               10000.
Pages active:                            200000.
Pages inactive:                          190000.
Pages wired down:                         90000.
"Translation faults":                 123456789.
"""


def run_without_linux(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments, cwd=ROOT, env=NO_LINUX, capture_output=True, text=True, timeout=300, check=False
    )


def test_a_job_runs_where_the_calls_of_linux_are_missing(tmp_path: Path) -> None:
    source, output = write_rows(tmp_path / "in.jsonl", 12), tmp_path / "out.jsonl"
    done = run_without_linux(run_command(source, output))
    assert done.returncode == 0, done.stderr
    assert [row["error"] for row in read_lines(output)] == [None] * 12


@pytest.mark.long
def test_a_model_answers_where_the_calls_of_linux_are_missing(tmp_path: Path) -> None:
    source, output = write_rows(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"
    command = ["run", source, "-o", output, "-m", "smollm2", "-p", "{{ text }}", "--max-tokens", 4]
    done = run_without_linux([sys.executable, "-m", "quire", *map(str, command)])
    assert done.returncode == 0, done.stderr
    assert [row["output_tokens"] for row in read_lines(output)] == [4] * 3


def test_several_ranks_are_refused_where_they_could_share_no_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(NotSupported, match="Linux alone"):
        tiny_llm(tmp_path, tensor_parallel_size=2)


@pytest.mark.parametrize("said", [0, errno.ENOTSUP, errno.EIO])
def test_a_file_is_synced_down_to_the_drive_where_fsync_stops_before_it(
    said: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[str] = []

    def to_the_drive(file: int, command: int) -> None:
        calls.append(f"fcntl {command}")
        if said:
            raise OSError(said, os.strerror(said))

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", to_the_drive)
    monkeypatch.setattr(os, "fsync", lambda file: calls.append("fsync"))
    monkeypatch.delattr(os, "fdatasync")
    if said == errno.EIO:
        with pytest.raises(OSError, match="error"):
            system.sync_data(1)
    else:
        system.sync_data(1)
    assert calls == ["fcntl 51", "fsync"][: 1 + (said == errno.ENOTSUP)]


def test_the_room_for_the_last_results_is_written_where_it_cannot_be_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    with open(tmp_path / "reserve", "wb") as file:
        system.reserve(file.fileno(), 100_000)
    assert (tmp_path / "reserve").stat().st_size == 100_000


def test_free_memory_is_what_the_system_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "vm_stat").write_text(f"#!/bin/sh\ncat <<'END'\n{VM_STAT}END\n")
    (tmp_path / "vm_stat").chmod(0o700)
    (tmp_path / "meminfo").write_text("MemTotal:       900 kB\nMemAvailable:    512 kB\n")
    for linux, macos, found in (("meminfo", "no", 512 << 10), ("no", "vm_stat", 200_000 << 14)):
        monkeypatch.setattr(system, "_MEMINFO", tmp_path / linux)
        monkeypatch.setattr(system, "_VM_STAT", tmp_path / macos)
        assert system.free_memory() == found
    monkeypatch.setattr(system, "_VM_STAT", tmp_path / "no")
    assert system.free_memory() is None


@pytest.mark.parametrize("said", [ProcessLookupError, PermissionError])
def test_a_group_that_has_ended_is_ended(
    said: type[OSError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def killpg(group: int, number: int) -> None:
        raise said

    monkeypatch.setattr(os, "killpg", killpg)
    system.kill_group(1 << 22)


def test_windows_is_told_of_wsl_at_the_import() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import os; os.name = 'nt'; import quire"],
        env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "ImportError: quire needs a POSIX system: on Windows" in done.stderr
