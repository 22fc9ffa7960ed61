"""metrics.jsonl: a line a second from the engine. It is not essential: if a line cannot be written,
no more are. The journal reports a full disk."""

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
    """Appends lines without syncing. The file is made with the first line."""

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
_LEVELS = ("running", "waiting")  # values of this moment: those of an ended engine do not count
_SHARES = ("kv_use", "prefix_hits")
_SECONDS = 1.0


class ReplicaMetrics:
    """Makes one line of the lines of several replicas, once a second: sums of their counters, and
    means of their shares. The counts of an engine that was replaced are kept. Seconds are measured
    with a monotonic clock, since the wall clocks of machines differ and may be set back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: dict[int, Message] = {}
        self._ended: dict[str, float] = dict.fromkeys(_COUNTERS, 0)  # of engines that ended
        self._began: float | None = None
        self._told_at = -math.inf

    def add(self, message: Message) -> Message | None:
        """Add a line of one replica; returns the line of all if a second has passed."""
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
        """The final line of all; None if no replica sent any."""
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
