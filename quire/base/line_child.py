"""A process of ours that answers lines with lines and may be killed at any moment: for code that
cannot be stopped otherwise, such as a search or a compile that takes forever."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

_ROOT = str(Path(__file__).resolve().parents[2])


def import_paths() -> str:
    """PYTHONPATH for a process that must import this quire, from whatever folder it starts in."""
    return os.pathsep.join([_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])


class LineChild:
    """`python -m MODULE`, which reads JSON line by line and answers each line with one. It ends
    when its input ends, and so with us. Raises OSError if no process can be started."""

    def __init__(self, module: str, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": import_paths(), **environment},
        )
        if self._process.stdin is not None:
            # A child that stopped reading must not block us: `exchange` has a deadline.
            os.set_blocking(self._process.stdin.fileno(), False)

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def exchange(self, line: str, seconds: float) -> dict[str, Any] | None:
        """Send a line and wait for the answer; None if the child died or took too long."""
        child, deadline = self._process, time.monotonic() + seconds
        if child.stdin is None or child.stdout is None:
            return None
        rest = memoryview(line.encode() + b"\n")
        while rest:  # a write takes only as much as fits into the pipe
            if not _is_ready(child.stdin, select.POLLOUT, deadline):
                return None
            try:
                rest = rest[child.stdin.write(rest) or 0 :]
            except BrokenPipeError:
                return None
        heard = b""
        while _is_ready(child.stdout, select.POLLIN, deadline):
            piece = os.read(child.stdout.fileno(), 1 << 16)
            if not piece:
                return None
            *whole, heard = (heard + piece).split(b"\n")
            for said in whole:
                if (answer := _object_at_end(said)) is not None:
                    return answer
        return None

    def status(self) -> int | None:
        """Its exit status; None if it still runs. Its pipe closes a moment before it has ended."""
        try:
            return self._process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # unwritten input that no process will read
                    pipe.close()
        self._process.wait()


def _object_at_end(line: bytes) -> dict[str, Any] | None:
    """The JSON object that a line ends with. Before the first one Python may print something at its
    start: whole lines, or the beginning of this one."""
    at = line.find(b"{")
    while at >= 0:
        with suppress(ValueError):
            found: dict[str, Any] = json.loads(line[at:])
            return found
        at = line.find(b"{", at + 1)
    return None


def _is_ready(pipe: IO[bytes], event: int, deadline: float) -> bool:
    poll = select.poll()
    poll.register(pipe, event)
    return bool(poll.poll(max(deadline - time.monotonic(), 0) * 1000))
