"""How long torch's threads spin while they wait for work; decided while torch is imported.

Idle threads of libgomp check for work 300,000 times before they sleep. On x86 each check pauses for
up to 140 cycles, some 15 ms in all: the whole time between two steps, on a core that other programs
may want. A thread that has used up its time slice with spinning is then not scheduled when there is
work, and the others wait for it. A thirtieth of the checks still covers the gaps between the
operations of a step. On Arm a check takes one or two cycles, so nothing needs to change.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager

LOOKS = "10000"
VARIABLE = "GOMP_SPINCOUNT"  # libgomp reads it once, when torch loads it
DECIDED = (VARIABLE, "OMP_WAIT_POLICY")


@contextmanager
def short_spins() -> Iterator[None]:
    """If torch is first imported within this context, its threads spin only shortly, unless the
    environment already says how they wait. The environment is restored afterwards."""
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
