"""Rows that the host draws for try ahead.

The device draws for such a row as well, without what edits its logits, and goes on from that for
some steps. The host then draws from the logits of each of these steps, after the edits: as long as
it draws the same token, the next step stands, too. Noise belongs to a position, so edits that
change little change few of the tokens, and the row keeps pace with those beside it. At the first
other token the row goes on from there; it is never behind where it would be step by step.

Rows that draw by masks try, too, in their own way (ahead.py).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from quire.request import Ints
from quire.scheduler.ahead import Ahead
from quire.scheduler.judging import Drawn
from quire.scheduler.rows import Rows
from quire.scheduler.turns import Turns
from quire.scheduler.waiting import Waiting
from quire.step import MOST_TRIED, StepPlan

FADING = 0.5  # of what earlier plans tell, with each


class Trials:
    """How far rows try, by how far they came."""

    def __init__(self, rows: Rows, waiting: Waiting, turns: Turns, most: int) -> None:
        """`most` steps that a plan may have."""
        self._rows, self._waiting, self._turns, self._most = rows, waiting, turns, most
        # Tokens after which a row went on by what the device drew, and how often it did not;
        # of the last plans, older ones fading.
        self._stood, self._broke = np.zeros(rows.capacity), np.zeros(rows.capacity)
        self._placement = np.zeros(rows.capacity, np.int64)  # which they are of
        self.ahead = Ahead(most)

    def running(self) -> Ints:
        """The rows that try, those with masks aside."""
        rows = self._rows
        running: Ints = rows.running[(rows.tries & ~rows.guided)[rows.running]]
        return running

    def most_steps(self) -> int:
        """Of every such row in the next plan."""
        at = self.running()
        if not len(at):
            return 1
        return max(1, min(int(self._reach(at).max()), MOST_TRIED // len(at)))

    @property
    def num_ahead(self) -> int:
        """Of every row with a mask. One half of them goes beside the other step by step."""
        return 1 if self._turns.by_turns else self.ahead.steps

    def steps(self, at: Ints, repeat: int) -> Ints:
        """How many tokens each decode row of a plan of so many steps may draw."""
        rows = self._rows
        most = np.where(rows.guided[at], self.num_ahead, self.most_steps())
        paced = np.where(rows.tries[at], np.minimum(repeat, most), 1)
        allowed = np.where(rows.paced[at], paced, repeat)
        steps: Ints = np.minimum(allowed, rows.limit[at] - rows.planned[at]).astype(np.int32)
        return steps

    @property
    def are_due(self) -> bool:
        """Whether the next plan is better made with the last result at hand: none waits for a
        row, and one that may come far would miss that plan, and be left alone at the end."""
        at = self.running()
        if not len(at) or len(self._waiting):
            return False
        waits = at[self._rows.known[at] < self._rows.planned[at]]
        return bool((self._reach(waits) > 1).any())

    def settle(self, plan: StepPlan, drawn: Drawn, held: Ints) -> None:
        """Set the rows that tried to where they got. Of a row in `held` the next position is
        computed as well."""
        if not len(plan.tried):
            return
        rows, at = self._rows, drawn.rows
        tried = np.isin(at, plan.tried)
        ahead = np.isin(at, held)[tried]
        some, kept = at[tried], drawn.kept[tried]
        rows.computed[some] = rows.known[some] - 1 + ahead
        rows.planned[some] = rows.known[some] + ahead
        order = np.argsort(plan.tried)
        asked = plan.num_tried[order[np.searchsorted(plan.tried, some, sorter=order)]]
        guided = rows.guided[some]
        self._settle_ahead(drawn, np.flatnonzero(tried)[guided], asked[guided])
        mine, kept, asked, ahead = some[~guided], kept[~guided], asked[~guided], ahead[~guided]
        self._meet(mine)
        self._stood[mine] = np.where(ahead, 0, FADING * self._stood[mine] + kept - 1)
        self._broke[mine] = FADING * self._broke[mine] + (kept < asked)

    def _settle_ahead(self, drawn: Drawn, lines: npt.NDArray[np.int64], asked: Ints) -> None:
        """The device went on by all that the rows of these lines drew; they kept some of it."""
        if not len(lines):
            return
        kept, ended = drawn.kept[lines], drawn.ended[lines]
        counts = drawn.counts[lines]
        self._rows.taken_back[drawn.rows[lines[~ended & (kept < counts)]]] = True
        # One step more was tried where a row had to rest in doubt; behind its end no row tries.
        tried = np.where(ended, kept, np.minimum(counts + 1, asked))
        self.ahead.observe(tried - 1, kept - 1)

    def _reach(self, at: Ints) -> Ints:
        """Steps of these rows that are likely to stand."""
        self._meet(at)
        means = (self._stood[at] + 1) / np.maximum(self._broke[at], 1 / self._most)
        reach: Ints = np.clip(means, 1, self._most).astype(np.int32)
        return reach

    def _meet(self, at: Ints) -> None:
        """Of rows that are new all is expected."""
        new = at[self._placement[at] != self._rows.placement[at]]
        self._stood[new], self._broke[new] = self._most - 1, 0.0
        self._placement[new] = self._rows.placement[new]
