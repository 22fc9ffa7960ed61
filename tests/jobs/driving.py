"""Running jobs as a user does, in processes of their own, with the fake engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from quire.jobs.store.segments import lines, segments
from quire.replicas import board
from tests.warm import is_warm_parent

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
SAMPLED = ("--temperature", 1, "--seed", 7)


def write_rows(path: Path, count: int, text: Callable[[int], str] = "row {}".format) -> Path:
    path.write_text("".join(json.dumps({"text": text(i)}) + "\n" for i in range(count)))
    return path


def command(*arguments: object, engine: str | None = None) -> list[str]:
    """`quire ARGUMENTS` with the fake engine, or with another MODULE:FACTORY."""
    chosen = [] if engine is None else [engine]
    return [sys.executable, "-m", "tests.jobs.drive", *chosen, *map(str, arguments)]


def run_command(input: object, output: object, *more: object, model: str = "fake") -> list[str]:
    fixed = ("-m", model, "-p", "Say {{ text }}", "--max-tokens", 6, "--quiet")
    return command("run", input, "-o", output, *fixed, *more)


def run(arguments: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments,
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        **options,
    )


def undisturbed(tmp_path: Path, source: Path) -> bytes:
    """What one engine that nothing happens to writes of these rows, drawn as SAMPLED says."""
    calm = tmp_path / "calm.jsonl"
    assert run(run_command(source, calm, *SAMPLED)).returncode == 0
    return calm.read_bytes()


@contextmanager
def started(arguments: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that is gone when the block ends."""
    process = subprocess.Popen(
        arguments,
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def children_of(pid: int) -> list[int]:
    """The engines of a supervisor."""
    found = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        children = map(int, found.read_text().split())
        return [child for child in children if not is_warm_parent(child)]
    except (FileNotFoundError, ProcessLookupError):
        return []


def rows_on_board(engine: int) -> int:
    """How many rows an engine shows on its board, a file without a name."""
    try:
        for path in Path(f"/proc/{engine}/fd").iterdir():
            if path.is_file() and path.stat().st_size == board.SIZE:
                with path.open("rb") as file:
                    return int(board.HEADER.unpack(file.read(board.HEADER.size))[3])
    except (FileNotFoundError, ProcessLookupError):
        pass
    return 0


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_until(condition: Callable[[], bool], seconds: float = 180.0, step: float = 0.01) -> bool:
    """Whether it came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(step)
    return True


def journal_bytes(job_dir: Path) -> int:
    try:
        return sum(path.stat().st_size for path in job_dir.glob("results-*.jsonl"))
    except FileNotFoundError:
        return 0


def records(job_dir: Path) -> list[dict[str, Any]]:
    """Every good line of the journal, in order, twice if it is there twice."""
    if not job_dir.exists():
        return []
    return [
        dict(line.fields)
        for segment in [0, *segments(job_dir)]
        for line in lines(job_dir, segment)
        if line.fields is not None
    ]


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
