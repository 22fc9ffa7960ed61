"""metrics.jsonl: a line a second from the engine. Nice to have: a full disk silences it, and the
journal beside it tells what that means."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from io import FileIO
from pathlib import Path

from quire.jobs.store.durable import open_own
from quire.replicas.wire import Message

NAME = "metrics.jsonl"


class MetricsFile:
    """Appends lines, and waits for none of them. Made with the first line, not before."""

    def __init__(self, job_dir: Path) -> None:
        self._path = job_dir / NAME
        self._file: FileIO | None = None
        self._silent = False

    def append(self, message: Message) -> None:
        if self._silent:
            return
        line = {name: value for name, value in message.items() if name != "kind"}
        try:
            file = self._file or open(self._path, "ab", buffering=0, opener=open_own)  # noqa: SIM115
            file.write(json.dumps(line).encode() + b"\n")
            self._file = file
        except OSError:
            self._silent = True

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


_COUNTERS = (
    *("prompt_tokens", "output_tokens", "finished", "steps", "guessed", "accepted"),
    *("running", "waiting"),
)
_LEVELS = ("running", "waiting")  # of these, what is so now and does not add up
_SHARES = ("kv_use", "prefix_hits")
_SECONDS = 1.0


class ReplicaMetrics:
    """The lines of several replicas as those of one engine that never began anew: sums of what
    they counted, means of their shares, once a second by a clock that no one sets: those of
    machines differ, and go back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: dict[int, Message] = {}
        self._ended: dict[str, float] = dict.fromkeys(_COUNTERS, 0)  # of engines that are gone
        self._began: float | None = None
        self._told_at = -math.inf

    def add(self, message: Message) -> Message | None:
        """A line of one replica; the line of all, if it is time for one."""
        replica = int(message["replica"])
        before = self._last.get(replica)
        if before is not None and before["began"] != message["began"]:
            for name in _COUNTERS:
                self._ended[name] += 0 if name in _LEVELS else before.get(name, 0)
        self._last[replica] = message
        if self._began is None:
            self._began = message["began"]
        now = self._clock()
        if now - self._told_at < _SECONDS:
            return None
        self._told_at = now
        return self._line(message["time"])

    def last(self) -> Message | None:
        """What came after the last line, if there were replicas at all."""
        if not self._last:
            return None
        return self._line(max(each["time"] for each in self._last.values()))

    def _line(self, now: float) -> Message:
        lines = list(self._last.values())
        shares = {n: sum(each.get(n, 0.0) for each in lines) / len(lines) for n in _SHARES}
        return {
            "kind": "metrics",
            "time": now,
            "began": self._began,
            **{n: self._ended[n] + sum(each.get(n, 0) for each in lines) for n in _COUNTERS},
            **{name: round(value, 4) for name, value in shares.items()},
            "replicas": len(lines),
        }
