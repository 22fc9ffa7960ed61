"""How long torch's threads wait awake for work, decided while torch is imported.

Threads of libgomp that have nothing to do look for work 300,000 times before they sleep. On x86
each look pauses for up to 140 cycles, so that is some 15 ms: all the time between two steps, on a
core that other programs may want. A thread that has spent its share of a core with looking is then
not there when there is work, and the others wait for it. A thirtieth of it still bridges the gaps
between the operations of a step. On Arm a look takes a cycle or two, and nothing need be changed.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager

LOOKS = "10000"
VARIABLE = "GOMP_SPINCOUNT"  # which libgomp reads once, when it is loaded with torch
DECIDED = (VARIABLE, "OMP_WAIT_POLICY")


@contextmanager
def short_spins() -> Iterator[None]:
    """Torch's threads spin shortly if torch is imported within this context for the first time,
    unless the environment already says how they wait. The environment is left as it was."""
    if (
        "torch" in sys.modules
        or platform.machine() not in ("x86_64", "AMD64")
        or any(name in os.environ for name in DECIDED)
    ):
        yield
        return
    os.environ[VARIABLE] = LOOKS
    try:
        yield
    finally:
        os.environ.pop(VARIABLE, None)
