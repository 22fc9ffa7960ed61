"""Trial: tries a grammar in a process that can be killed, before it is compiled in ours.

A compile cannot be interrupted, and a matcher cannot cross processes. So what may be dear is
compiled twice: there under limits, then here, where it then takes no longer. The process stays
for the next grammar; it ends with its input, and so with us.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

from quire.errors import InvalidGrammar
from quire.grammar.limits import MIB, GrammarLimits
from quire.grammar.vocabulary import Vocabulary

# Until the child has read the vocabulary; no grammar's fault, so without haste.
_START_SECONDS = 60.0
_ROOT = str(Path(__file__).resolve().parent.parent.parent)


class Trial:
    """The child process, started when first needed. One grammar at a time."""

    def __init__(self, vocabulary: Vocabulary, limits: GrammarLimits) -> None:
        self._vocabulary, self._limits = vocabulary, limits
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None

    def run(self, kind: str, text: str) -> str:
        """What llguidance says of the grammar: "" or its error.

        Raises InvalidGrammar where it took too much time, memory or stack.
        """
        limits = self._limits
        task = {
            "text": text,
            "seconds": limits.compile_seconds,
            "memory": limits.trial_memory,
            "mask_seconds": limits.mask_seconds,
            "lexer_states": limits.lexer_states,
        }
        with self._lock:
            child = self._started()
            reply = _exchange(child, json.dumps(task), limits.wall_seconds)
            if reply is None:
                raise InvalidGrammar(f"{kind}: {self._buried()}; make it simpler", parameter=kind)
        error = str(reply["error"])
        if error.startswith("slow: "):
            raise InvalidGrammar(
                f"{kind}: following it takes {error[6:]} s for a single token, and at most "
                f"{limits.mask_seconds} s are given; make it simpler",
                parameter=kind,
            )
        return error

    def start(self) -> None:
        """Start the child now, rather than when first needed."""
        with self._lock:
            self._started()

    def close(self) -> None:
        with self._lock:
            if self._child is not None:
                self._end(self._child)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is not None and self._child.poll() is None:
            return self._child
        paths = [_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", "quire.grammar.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "RAYON_NUM_THREADS": "1"},
        )
        if _exchange(self._child, self._vocabulary.to_line(), _START_SECONDS) is None:
            self._end(self._child)
            raise InvalidGrammar(
                "the process that tries grammars before they are compiled did not start; see "
                f"whether `{sys.executable} -m quire.grammar.child` runs",
                parameter="structured_outputs",
            )
        return self._child

    def _buried(self) -> str:
        """End the child and say, from how it went, what it died of."""
        child, limits = self._child, self._limits
        if child is None:
            return "its trial was ended"
        try:
            # The pipe closes a moment before the process is gone.
            status = child.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            status = 0
        self._end(child)
        if status == -signal.SIGSEGV:
            return "it is too large, or nested too deeply, for the stack it is given"
        if status in (-signal.SIGABRT, -signal.SIGKILL, 1):
            return f"compiling it needs more than {limits.trial_memory // MIB} MiB"
        return f"compiling it takes more than {limits.compile_seconds:g} s"

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        self._child = None
        child.kill()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                _close(pipe)
        child.wait()


def _close(pipe: IO[bytes]) -> None:
    try:
        pipe.close()
    except BrokenPipeError:  # what was still to be written has no reader any more
        return


def _exchange(child: subprocess.Popen[bytes], line: str, seconds: float) -> dict[str, Any] | None:
    """Send a line and wait for the answer; None if the child died or took too long."""
    if child.stdin is None or child.stdout is None:
        return None
    deadline = time.monotonic() + seconds
    try:
        child.stdin.write(line.encode() + b"\n")
        child.stdin.flush()
    except BrokenPipeError:
        return None
    poll = select.poll()
    poll.register(child.stdout, select.POLLIN)
    answer = b""
    while not answer.endswith(b"\n"):
        left = deadline - time.monotonic()
        ready = poll.poll(max(left, 0) * 1000)
        piece = os.read(child.stdout.fileno(), 1 << 16) if ready else b""
        if not piece:
            return None
        answer += piece
    reply: dict[str, Any] = json.loads(answer)
    return reply
