"""Each rank's progress, in memory shared by all: read when no messages come."""

from __future__ import annotations

import mmap
import os
from enum import IntEnum

import numpy as np
import numpy.typing as npt


class Column(IntEnum):
    """Plans that a rank began and finished, sums that it began, and parts of its tower. The number
    of a plan and a checksum are in one value, so that they are always read together. Checksum of
    begun: the plan as received; of finished: all tokens drawn so far and the number of sums."""

    BEGUN, FINISHED, SUMS, ENCODED = range(4)


_CHECKSUM_BITS = 32


class Board:
    """A line of numbers for each rank, written only by that rank."""

    def __init__(self, file: int, size: int) -> None:
        self.file, self._map = file, mmap.mmap(file, size * len(Column) * 8)
        self._lines: npt.NDArray[np.int64] | None = np.frombuffer(self._map, np.int64).reshape(
            size, len(Column)
        )

    @classmethod
    def create(cls, size: int) -> Board:
        file = os.memfd_create("quire-board")
        os.ftruncate(file, size * len(Column) * 8)
        return cls(file, size)

    @property
    def lines(self) -> npt.NDArray[np.int64]:
        if self._lines is None:
            raise ValueError("this board is closed")
        return self._lines

    def write(self, rank: int, column: Column, number: int, checksum: int | None = None) -> None:
        if checksum is not None:
            number = number << _CHECKSUM_BITS | checksum
        self.lines[rank, column] = number

    def movement(self) -> bytes:
        """A value that changes whenever a rank makes progress."""
        return self.lines.tobytes()

    def disagreement(self) -> str | None:
        """How ranks that are at the same plan differ in what they got or computed. None if they
        agree or are at different plans."""
        for column, what in (
            (Column.BEGUN, "were given different plans under"),
            (Column.FINISHED, "drew different tokens, or made different sums, up to"),
        ):
            values = self.lines[:, column].tolist()
            numbers = {value >> _CHECKSUM_BITS for value in values}
            if len(numbers) == 1 and len(set(values)) > 1:
                return f"ranks {what} the number {numbers.pop()}"
        return None

    def describe(self) -> str:
        """One clause for each rank."""
        clauses = []
        for rank, (begun, finished, sums, encoded) in enumerate(self.lines.tolist()):
            plans = f"plan {begun >> _CHECKSUM_BITS} begun, {finished >> _CHECKSUM_BITS} finished"
            tower = f", {encoded} parts of its tower" if encoded else ""
            clauses.append(f"rank {rank}: {plans}, {sums} sums{tower}")
        return "; ".join(clauses)

    def close(self) -> None:
        self._lines = None
        self._map.close()
        os.close(self.file)
