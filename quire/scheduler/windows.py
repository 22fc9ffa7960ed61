"""Blocks behind the windows of groups of layers are given back while their rows run.

A row that is computed, and known, up to a token computes that token or a later one next. No group
reads blocks behind the window of that token. Plans run in the order they are made, so blocks that
are given back may be taken by the very next plan, whatever is still in flight.
The device need not be notified: no kernel looks behind a window.

block_size 4, window 6, 13 tokens computed and known: the next plan, or a row that begins again with
three whole blocks, sees from token 12 - 6 + 1 = 7 on. Block 0 is given back, blocks 1 .. 3 stay.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from quire.cache.groups import WindowGroups
from quire.request import Ints
from quire.scheduler.placements import Placements
from quire.scheduler.rows import Rows, counted_out


class PastWindows:
    """Finds blocks that rows no longer see. Does nothing for a pool without windows."""

    def __init__(self, placements: Placements) -> None:
        self._pool, self._rows = placements.pool, placements.rows

    def give_back(self) -> None:
        """Release the blocks that no running row will read again."""
        for groups in self._pool.windowed:
            at = self._rows.running
            count = self._unseen(at, _reached(self._rows, at), groups)
            at, count = at[count > 0], count[count > 0]
            if len(at) and self._rows.num_candidates[at].any():
                count = self._unseen(at, self._reached_by_all(at), groups)
                at, count = at[count > 0], count[count > 0]
            if len(at):
                self._release(at, count, groups)

    def are_pending(self) -> bool:
        """Whether rows will have blocks to give back when the plans in flight are known."""
        at = self._rows.running
        return any(
            (self._unseen(at, self._rows.computed[at], groups) > 0).any()
            for groups in self._pool.windowed
        )

    def _unseen(self, at: Ints, reached: Ints, groups: WindowGroups) -> Ints:
        """How many more blocks lie behind the window than were given back."""
        size = self._pool.block_size
        first = (reached // size * size - groups.window + 1) // size
        more: Ints = first - self._rows.given_back[groups.first, at]
        return more

    def _reached_by_all(self, at: Ints) -> Ints:
        """The same, but less for beams while a preempted search begins again: its beams share what
        they have in common with those before them, which is the prompt at least."""
        rows, reached = self._rows, _reached(self._rows, at)
        for i in np.flatnonzero(rows.num_candidates[at]).tolist():
            group = rows.sequence(int(at[i])).group
            if group is not None and group.num_begun < group.num_beams:
                reached[i] = min(reached[i], rows.num_prompt[at[i]])
        return reached

    def _release(self, at: Ints, count: Ints, groups: WindowGroups) -> None:
        rows, mine = self._rows, slice(groups.first, groups.last)
        # Rows [4 7] that give [2 1] back -> rows [4 4 7], indices [g4 g4+1 g7].
        repeated = np.repeat(at, count)
        indices = rows.given_back[groups.first, repeated] + counted_out(count)
        blocks: npt.NDArray[np.int32] = rows.blocks[mine, repeated, indices]
        rows.blocks[mine, repeated, indices] = -1
        rows.given_back[mine, at] += count
        self._pool.release_all(blocks)


def _reached(rows: Rows, at: Ints) -> Ints:
    """The first token that each row may have to compute next."""
    reached: Ints = np.minimum(rows.known[at] - 1, rows.computed[at])
    return reached
