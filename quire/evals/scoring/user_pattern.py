"""UserPattern: a regular expression of the user's, which may take forever on some answer.

(a+)+b on 40 letters "a" takes hours, and Python's search cannot be stopped from outside. So it
runs in a process that can be ended, started with the first answer and there for the next one.
"""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any

from quire.errors import InvalidOption
from quire.evals.scoring import text
from quire.evals.scoring.scorer import ScorerFailed

_SECONDS = 2.0  # of processor time, for one answer
_WALL_SECONDS = 20.0  # until an answer is given up, on a machine however busy
_ROOT = str(Path(__file__).resolve().parent.parent.parent.parent)


class PatternTooSlow(ScorerFailed):
    """The search took longer than it may for one answer."""


class UserPattern:
    """The pattern given as `option`; InvalidOption where it does not read."""

    def __init__(self, pattern: str, option: str, *, seconds: float = _SECONDS) -> None:
        try:
            re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise InvalidOption(
                f"{option} takes a Python regular expression, not {pattern!r}: {error}",
                parameter=option,
                value=pattern,
            ) from None
        self._pattern, self._option, self._seconds = pattern, option, seconds
        self._child: subprocess.Popen[bytes] | None = None

    def extract(self, answer: str, *, last: bool = False) -> str | None:
        """What text.extract finds; PatternTooSlow where that takes too long."""
        child = self._started()
        reply = _exchange(child, {"text": answer, "last": last})
        if reply is None:
            self._child = None
            _end(child)
            raise PatternTooSlow(
                f"{self._option} {self._pattern!r:.100} takes more than {self._seconds:g} s on an "
                f"answer of {len(answer):,} characters; write it without repetitions inside others"
            )
        found: str | None = reply["found"]
        return found

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is not None and self._child.poll() is None:
            return self._child
        paths = [_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "quire.evals.scoring.pattern_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        weakref.finalize(self, _end, child)
        if _exchange(child, {"pattern": self._pattern, "seconds": self._seconds}) is None:
            _end(child)
            raise ScorerFailed(
                f"the process that looks for {self._option} did not start; see whether "
                f"`{sys.executable} -m quire.evals.scoring.pattern_child` runs"
            )
        self._child = child
        return child


Pattern = re.Pattern[str] | UserPattern


def found_by(pattern: Pattern, answer: str, *, last: bool = False) -> str | None:
    """What text.extract finds: here by a pattern of ours, elsewhere by one of the user's."""
    if isinstance(pattern, UserPattern):
        return pattern.extract(answer, last=last)
    return text.extract(pattern, answer, last=last)


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()
    child.wait()


def _exchange(child: subprocess.Popen[bytes], message: dict[str, Any]) -> dict[str, Any] | None:
    """Send a line and wait for the answer; None if the child died or took too long."""
    if child.stdin is None or child.stdout is None:
        return None
    try:
        # A pipe takes what fits and says how much that was.
        rest = memoryview(json.dumps(message).encode() + b"\n")
        while rest:
            rest = rest[child.stdin.write(rest) or 0 :]
    except BrokenPipeError:
        return None
    deadline = time.monotonic() + _WALL_SECONDS
    poll = select.poll()
    poll.register(child.stdout, select.POLLIN)
    answer = b""
    while not answer.endswith(b"\n"):
        ready = poll.poll(max(deadline - time.monotonic(), 0) * 1000)
        piece = os.read(child.stdout.fileno(), 1 << 16) if ready else b""
        if not piece:
            return None
        answer += piece
    reply: dict[str, Any] = json.loads(answer)
    return reply
