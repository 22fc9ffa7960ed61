"""Rows that the host draws for try ahead.

The device draws for such a row as well, without what edits its logits, and goes on from that for
some steps. The host then draws from the logits of each of these steps, after the edits: as long as
it draws the same token, the next step stands, too. Noise belongs to a position, so edits that
change little change few of the tokens, and the row keeps pace with those beside it. At the first
other token the row goes on from there; it is never behind where it would be step by step.
"""

from __future__ import annotations

import numpy as np

from quire.request import Ints
from quire.scheduler.rows import Rows
from quire.scheduler.waiting import Waiting
from quire.step import MOST_TRIED, StepPlan

FADING = 0.5  # of what earlier plans tell, with each


class Trials:
    """How far rows try, by how far they came."""

    def __init__(self, rows: Rows, waiting: Waiting, most: int) -> None:
        """`most` steps that a plan may have."""
        self._rows, self._waiting, self._most = rows, waiting, most
        # Tokens after which a row went on by what the device drew, and how often it did not;
        # of the last plans, older ones fading.
        self._stood, self._broke = np.zeros(rows.capacity), np.zeros(rows.capacity)
        self._placement = np.zeros(rows.capacity, np.int64)  # which they are of

    def running(self) -> Ints:
        """The rows that try."""
        running: Ints = self._rows.running[self._rows.tries[self._rows.running]]
        return running

    def most_steps(self) -> int:
        """Of every such row in the next plan."""
        at = self.running()
        if not len(at):
            return 1
        return max(1, min(int(self._reach(at).max()), MOST_TRIED // len(at)))

    def steps(self, at: Ints, repeat: int) -> Ints:
        """How many tokens each decode row of a plan of so many steps may draw."""
        rows = self._rows
        paced = np.where(rows.tries[at], min(repeat, self.most_steps()), 1)
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

    def settle(self, plan: StepPlan, at: Ints, kept: Ints, held: Ints) -> None:
        """Set the rows of `at` that tried to where they got: row at[i] kept so many tokens. Of a
        row in `held` the next position is computed as well."""
        if not len(plan.tried):
            return
        rows, tried = self._rows, plan.num_tried.tolist()
        num_tried = dict(zip(plan.tried.tolist(), tried, strict=True))
        self._meet(plan.tried)
        for row, count in zip(at.tolist(), kept.tolist(), strict=True):
            if row not in num_tried:
                continue
            ahead = int(row in held)
            rows.computed[row] = rows.known[row] - 1 + ahead
            rows.planned[row] = rows.known[row] + ahead
            self._stood[row] = 0 if ahead else FADING * self._stood[row] + count - 1
            self._broke[row] = FADING * self._broke[row] + (count < num_tried[row])

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
