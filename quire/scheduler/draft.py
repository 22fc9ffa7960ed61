"""A StepPlan while it is being made."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from quire.request import Ints
from quire.scheduler.rows import counted_out
from quire.step import Assigned, RowStart, Slice


@dataclass(slots=True)
class Draft:
    """A StepPlan while it is being made. `spare` tokens of the `budget` may go to background
    rows."""

    budget: int
    spare: int
    starts: list[RowStart] = field(default_factory=list)
    # Changes of block tables, in order: rows and indices of entries, and their blocks. Changes that
    # come as runs (row, first index, count) are turned into entries many at a time.
    entries: list[tuple[Ints, Ints]] = field(default_factory=list)
    runs: list[tuple[int, int, int]] = field(default_factory=list)
    blocks: list[Ints] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    prefill: list[Slice] = field(default_factory=list)

    def assigned(self) -> Assigned:
        """The block-table changes so far, each entry once.

        A row that forks and writes in one plan changes its last entry twice; a device writes
        entries in any order, so only the last change is sent.
        """
        self._spread()
        if not self.entries:
            return Assigned()
        rows, indices = (np.concatenate(c) for c in zip(*self.entries, strict=True))
        blocks = np.concatenate(self.blocks, axis=-1)
        entries = rows.astype(np.int64) << 32 | indices
        _, from_the_end = np.unique(entries[::-1], return_index=True)
        if len(from_the_end) < len(entries):
            last = np.sort(len(entries) - 1 - from_the_end)
            rows, indices, blocks = rows[last], indices[last], blocks[:, last]
        return Assigned(rows, indices, blocks.reshape(-1))

    def assign(self, row: int, first: int, blocks: Ints) -> None:
        """The entries of a row's tables from `first` on are now blocks [groups, entries]."""
        self.runs.append((row, first, blocks.shape[1]))
        self.blocks.append(blocks)

    def assign_each(self, rows: Ints, indices: Ints, blocks: Ints) -> None:
        """Entry indices[i] of the tables of row rows[i] is now blocks[:, i]."""
        self._spread()
        self.entries.append((rows, indices))
        self.blocks.append(blocks)

    def _spread(self) -> None:
        if self.runs:
            rows, firsts, counts = np.array(self.runs, np.int32).T
            # Runs (4, 7, 2) and (5, 0, 1) -> rows [4 4 5], indices [7 8 0].
            indices = np.repeat(firsts, counts) + counted_out(counts)
            self.entries.append((np.repeat(rows, counts), indices))
            self.runs.clear()
