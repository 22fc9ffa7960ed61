"""Rows that the host draws for let the device try a few steps ahead.

The device draws for such a row as well, without the edits of its logits, and goes on from its own
draw for some steps. The host then draws from the edited logits of each of these steps: as long as
it draws the same token as the device, the next step counts, too. Noise belongs to a position, so
edits that change little change few tokens, and the row keeps pace with others. At the first
different token the row goes on from that one; it is never behind where it would be step by step.

Rows that draw with masks go ahead in their own way (ahead.py).
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

FADING = 0.5  # of the counts of earlier plans, with each plan


class Trials:
    """How many steps rows try, from how many steps counted before."""

    def __init__(self, rows: Rows, waiting: Waiting, turns: Turns, most: int) -> None:
        """`most`: steps that a plan may have."""
        self._rows, self._waiting, self._turns, self._most = rows, waiting, turns, most
        # How often a row's next step counted because both draws were the same, and how often not;
        # older plans fade.
        self._stood, self._broke = np.zeros(rows.capacity), np.zeros(rows.capacity)
        self._placement = np.zeros(rows.capacity, np.int64)  # that these counts are about
        self.ahead = Ahead(most)

    def running(self) -> Ints:
        """The running rows that try, without rows that have masks."""
        rows = self._rows
        running: Ints = rows.running[(rows.goes_ahead & ~rows.guided)[rows.running]]
        return running

    def most_steps(self) -> int:
        """Steps of every row that tries in the next plan."""
        at = self.running()
        if not len(at):
            return 1
        return max(1, min(int(self._reach(at).max()), MOST_TRIED // len(at)))

    @property
    def num_ahead(self) -> int:
        """Steps of every row with a mask; 1 while half of them is planned at a time."""
        return 1 if self._turns.by_turns else self.ahead.steps

    def steps(self, at: Ints, repeat: int) -> Ints:
        """How many tokens each decode row may draw in a plan of `repeat` steps."""
        rows = self._rows
        left = rows.limit[at] - rows.planned[at]
        if not rows.waits_for_host[at].any():
            steps: Ints = np.minimum(repeat, left)
            return steps
        most = np.where(rows.guided[at], self.num_ahead, self.most_steps())
        paced = np.where(rows.goes_ahead[at], np.minimum(repeat, most), 1)
        allowed = np.where(rows.waits_for_host[at], paced, repeat)
        steps = np.minimum(allowed, left).astype(np.int32)
        return steps

    @property
    def are_due(self) -> bool:
        """Whether to wait for the last result before the next plan: if no sequence waits for a
        row, a row that may go several steps would miss that plan, and be left alone at the end."""
        if len(self._waiting) or not len(at := self.running()):
            return False
        waits = at[self._rows.known[at] < self._rows.planned[at]]
        return bool((self._reach(waits) > 1).any())

    def settle(self, plan: StepPlan, drawn: Drawn, held: Ints) -> None:
        """Set the rows that tried to where their tokens end. For a row in `held` the next position
        is computed as well."""
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
        self._set_up_new(mine)
        self._stood[mine] = np.where(ahead, 0, FADING * self._stood[mine] + kept - 1)
        self._broke[mine] = FADING * self._broke[mine] + (kept < asked)

    def _settle_ahead(self, drawn: Drawn, lines: npt.NDArray[np.int64], asked: Ints) -> None:
        """Count for rows with masks how many of the tokens that the device drew they kept."""
        if not len(lines):
            return
        kept, ended = drawn.kept[lines], drawn.ended[lines]
        counts = drawn.counts[lines]
        self._rows.taken_back[drawn.rows[lines[~ended & (kept < counts)]]] = True
        # A row that had to rest in doubt tried one more step; after its end no row tries.
        tried = np.where(ended, kept, np.minimum(counts + 1, asked))
        self.ahead.observe(tried - 1, kept - 1)

    def _reach(self, at: Ints) -> Ints:
        """Steps of these rows that are likely to count."""
        self._set_up_new(at)
        means = (self._stood[at] + 1) / np.maximum(self._broke[at], 1 / self._most)
        reach: Ints = np.clip(means, 1, self._most).astype(np.int32)
        return reach

    def _set_up_new(self, at: Ints) -> None:
        """Expect the most of rows with a new placement."""
        new = at[self._placement[at] != self._rows.placement[at]]
        self._stood[new], self._broke[new] = self._most - 1, 0.0
        self._placement[new] = self._rows.placement[new]
