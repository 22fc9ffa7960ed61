"""How many cores this process may use. No torch."""

from __future__ import annotations

import math
import os
from pathlib import Path

QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable_cores() -> int:
    """The number of cores, limited by affinity and by the container's quota."""
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    try:
        quota = QUOTA.read_text().split()
    except OSError:
        quota = []
    if len(quota) == 2 and quota[0].isdigit():
        cores = min(cores, math.ceil(int(quota[0]) / int(quota[1])))
    return max(1, cores)
