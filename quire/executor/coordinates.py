"""Coordinates of a pass, for models whose positions have three: those of prompts as plans give
them, and behind a prompt three equal ones, at the position and what its row adds to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.request import Ints
from quire.step import RowStart, Slice

Longs = npt.NDArray[np.int64]


class Deltas:
    """What each row adds to its positions."""

    def __init__(self, num_rows: int) -> None:
        self.of_rows = np.zeros(num_rows, np.int64)
        self._any = False  # row ever had one

    def start(self, starts: Sequence[RowStart]) -> None:
        for start in starts:
            self.of_rows[start.row] = start.delta
            self._any |= start.delta != 0

    def moves(self, one: Slice) -> bool:
        """Whether a slice has other coordinates than its positions."""
        return one.coordinates is not None or bool(self.of_rows[one.row])

    def coordinates(
        self, prefill: Sequence[Slice], rows: Ints, positions: Ints, num_tokens: int
    ) -> Longs | None:
        """[3, num_tokens] of these slices, then of decode rows at their positions, then zeros;
        None where they are the positions themselves."""
        if not self._any and all(one.coordinates is None for one in prefill):
            return None
        parts = [self._of(one) for one in prefill]
        decoded = np.tile(positions + self.of_rows[rows], (3, 1))
        made = np.concatenate([*parts, decoded], 1).astype(np.int64)
        return np.pad(made, ((0, 0), (0, num_tokens - made.shape[1])))

    def _of(self, one: Slice) -> npt.NDArray[Any]:
        if one.coordinates is not None:
            return one.coordinates
        at = np.arange(one.start, one.start + len(one.token_ids)) + self.of_rows[one.row]
        return np.tile(at, (3, 1))
