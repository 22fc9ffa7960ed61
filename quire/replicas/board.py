"""A small piece of memory that supervisor and engine share, readable after the engine died.

The engine writes its phase, the time of its last move, and which rows are on the device. If it is
found dead or silent, these rows are suspected.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
import tempfile
import time
from collections.abc import Iterable
from enum import IntEnum

MOST_ROWS = 1 << 14
HEADER = struct.Struct("=qqqq")  # phase, nanoseconds of the last move, median step, row count
SIZE = HEADER.size + 8 * MOST_ROWS
SILENCE, SLOW_STEPS = 60.0, 20  # hung after so many seconds, or median steps, without a move


class Phase(IntEnum):
    LOADING = 0
    IDLE = 1  # waiting for rows
    WORKING = 2


class Board:
    """One engine's board. Times are of the monotonic clock, which all processes share."""

    def __init__(self, file: int) -> None:
        self.number = file
        self._memory = mmap.mmap(file, SIZE)
        self.moved_at = time.monotonic()  # by this process

    @classmethod
    def create(cls) -> Board:
        """A new board in an unnamed file, whose descriptor a child inherits."""
        with tempfile.TemporaryFile(prefix="quire-board-") as file:
            number = os.dup(file.fileno())
        os.ftruncate(number, SIZE)
        return cls(number)

    def move(self, phase: Phase, median_step: float = 0.0) -> None:
        """Write the engine's phase, and that it moved now."""
        self.moved_at = time.monotonic()
        _, _, _, count = HEADER.unpack_from(self._memory)
        HEADER.pack_into(self._memory, 0, phase, time.monotonic_ns(), int(median_step * 1e9), count)

    def beat(self) -> None:
        """Write that the engine moved now."""
        struct.pack_into("=q", self._memory, 8, time.monotonic_ns())

    def show_rows(self, rows: Iterable[int]) -> None:
        """Write which rows the engine holds from now on."""
        shown = list(rows)[:MOST_ROWS]
        struct.pack_into(f"={len(shown)}q", self._memory, HEADER.size, *shown)
        struct.pack_into("=q", self._memory, HEADER.size - 8, len(shown))

    def rows(self) -> list[int]:
        count = min(max(HEADER.unpack_from(self._memory)[3], 0), MOST_ROWS)
        return list(struct.unpack_from(f"={count}q", self._memory, HEADER.size))

    def phase(self) -> Phase:
        return Phase(HEADER.unpack_from(self._memory)[0])

    def is_hung(self, watched: float = math.inf) -> bool:
        """Whether the engine works on rows and has not moved for far too long. `watched`: seconds
        for which this process itself was able to read the engine's messages."""
        _, moved, median, _ = HEADER.unpack_from(self._memory)
        silent = (time.monotonic_ns() - moved) / 1e9 if moved else 0.0
        is_long = min(silent, watched) > max(SILENCE, SLOW_STEPS * median / 1e9)
        return is_long and self.phase() == Phase.WORKING

    def close(self) -> None:
        self._memory.close()
        os.close(self.number)
