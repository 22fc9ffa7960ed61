"""Engines that died for want of memory, and what the next one is given instead."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_COUNTERS = (Path("/proc/vmstat"), Path("/sys/fs/cgroup/memory.events"))
_FEWEST_BLOCKS = 64


def memory_kills() -> int:
    """A count that grows with every process the kernel kills for memory; 0 where none is kept."""
    total = 0
    for path in _COUNTERS:
        try:
            lines = path.read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return total


class MemoryKills:
    """Counts the engines of one run that memory ran out for."""

    def __init__(self) -> None:
        self._before, self._count = memory_kills(), 0

    def begin(self) -> None:
        """A new engine starts."""
        self._before = memory_kills()

    def count(self, code: int, *, said_so: bool) -> int:
        """An engine ended with this code; how many times memory has run out by now, or 0 if it
        was something else this time. A SIGKILL alone proves nothing: anybody can send one."""
        killed = code == -signal.SIGKILL and memory_kills() > self._before
        self._count += killed or said_so
        return self._count if killed or said_so else 0


def smaller(options: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """The engine options with half the rows and half the KV blocks that the last engine had."""
    return {
        **options,
        "max_num_seqs": max(1, int(facts["capacity"]) // 2),
        "num_gpu_blocks_override": max(_FEWEST_BLOCKS, int(facts.get("num_blocks", 0)) // 2),
    }
