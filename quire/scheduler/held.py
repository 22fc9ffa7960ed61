"""Rows that drew nothing because their logits are with the row's processors.

Such a row keeps its place and its blocks; nothing is planned for it. When its processors are
done, the next plan releases it: it draws from those logits, and goes on like any other row.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from quire.request import Ints
from quire.scheduler.rows import Rows
from quire.steps.handles import Handles


class HeldRows:
    """The numbers of held logits by row, with the number of the placement they belong to."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.handles = Handles()
        self._held: dict[int, tuple[int, int]] = {}

    def __len__(self) -> int:
        self._forget_the_gone()
        return len(self._held)

    def add(self, held: dict[int, int], rows: Ints, placements: npt.NDArray[np.int64]) -> None:
        """From a result: held[i] is the number of the logits of rows[i], in placements[i]."""
        for i, number in held.items():
            self._held[int(rows[i])] = int(placements[i]), number

    def release(self) -> Ints:
        """The rows whose logits are ready to draw from; they are no longer held."""
        if not self._held:
            return np.empty(0, np.int32)
        self._forget_the_gone()
        held = self._held.items()
        ready = [row for row, (_, number) in held if self.handles.held(number).done()]
        for row in ready:
            self._drop(row)
        return np.array(ready, np.int32)

    def wait(self, seconds: float) -> None:
        """Wait until a row can be released, for at most `seconds`."""
        self._forget_the_gone()
        for _, number in self._held.values():
            self.handles.held(number).wait(seconds)
            return

    def _forget_the_gone(self) -> None:
        """Drop rows whose sequence ended or was preempted; the executor dropped them as well."""
        gone = [
            row
            for row, (placement, _) in self._held.items()
            if self._rows.placement[row] != placement
        ]
        for row in gone:
            self._drop(row)

    def _drop(self, row: int) -> None:
        _, number = self._held.pop(row)
        self.handles.drop_held(number)
