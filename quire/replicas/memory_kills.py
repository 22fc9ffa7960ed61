"""Recognises engines that the kernel killed for memory, and gives the next one smaller options."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_COUNTERS = (Path("/proc/vmstat"), Path("/sys/fs/cgroup/memory.events"))
_FEWEST_BLOCKS = 64


# Signals from outside: nothing that an engine computes sends them to itself.
_FOREIGN = (-signal.SIGKILL, -signal.SIGTERM)


def memory_kills() -> int | None:
    """A count that grows with every process that the kernel kills for memory; None if the system
    has none."""
    counts: list[int] = []
    for path in _COUNTERS:
        try:
            lines = path.read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        counts += [int(line.split()[1]) for line in lines if line.startswith("oom_kill ")]
    return sum(counts) if counts else None


class MemoryKills:
    """Tells whether the kernel killed an engine for its memory, or something else did. Must be made
    when the engine starts."""

    def __init__(self) -> None:
        self._before = memory_kills()

    def is_why(self, code: int) -> bool:
        """Whether the kernel killed the engine. A SIGKILL alone does not prove it: any process of
        the user can send one."""
        return code == -signal.SIGKILL and (memory_kills() or 0) > (self._before or 0)

    def is_foreign(self, code: int) -> bool:
        """Whether an engine that we did not kill was certainly killed from outside."""
        return code in _FOREIGN and memory_kills() == self._before is not None


def smaller(options: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """The options with half the rows and half the KV blocks of the last engine."""
    return {
        **options,
        "max_num_seqs": max(1, int(facts["capacity"]) // 2),
        "num_gpu_blocks_override": max(_FEWEST_BLOCKS, int(facts.get("num_blocks", 0)) // 2),
    }
