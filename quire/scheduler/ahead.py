"""Rows that draw by masks go on without them for a few steps.

A row draws its first token of a plan by its mask, and the next ones without: what was drawn so
stands as far as the grammar allows it. Noise belongs to a position and a token, so the likeliest of
all tokens, if the grammar allows it, is the likeliest of the allowed ones, too; a row that draws
among the first few tokens only (top_k, top_p, min_p) does not go ahead, since a mask changes which
these are. A model that writes what its grammar wants, as most do, is followed some tokens at a
time, and what the host does for a plan is done for all of them. One that does not is soon left to
its masks, and asked again now and then.
"""

from __future__ import annotations

import numpy as np

from quire.request import Ints

# A step of a plan is worth trying where it stands for so many of the rows that try it. What the
# host does for a plan of 256 rows took an H200 as long as 5 steps of a model of 0.1B, for which less
# would do, and as long as 0.7 of one of 8B, for which it is about this.
WORTH = 0.55
# With each plan what earlier ones told fades to so much, and slower where it is of few rows: about
# so many are remembered.
FADING, REMEMBERED = 0.7, 20
EVIDENCE = 4.0  # of fewer rows that tried a step one for which it did not stand says little
# Plans for which nothing is tried when that was not worth it, at first and at most.
LEAST_PAUSE, MOST_PAUSE = 16, 256


class Ahead:
    """How far rows go, by how far they came."""

    def __init__(self, most: int) -> None:
        """`most` steps that a plan may have."""
        # Of the last plans: rows that tried each step without a mask, and for which it stood.
        self._tried, self._stood = np.zeros(most - 1), np.zeros(most - 1)
        self._pause, self._left = LEAST_PAUSE, 0

    @property
    def steps(self) -> int:
        """Of such a row in the next plan: those that are worth trying, and as many again where it
        is not known of more."""
        if self._left:
            return 1
        refused = self._tried - self._stood > (1 - WORTH) * np.maximum(self._tried, EVIDENCE)
        worth = int(refused.argmax()) if refused.any() else len(refused)
        known = int((self._tried >= 1).sum())
        return 1 + min(worth, max(1, 2 * known))

    def observe(self, tried: Ints, stood: Ints) -> None:
        """Rows tried so many steps each without a mask; so many of these stood."""
        if not len(tried) or not tried.max():
            self._left = max(self._left - 1, 0)
            return
        fading = max(FADING, 1 - len(tried) / REMEMBERED)
        step = np.arange(len(self._tried))[:, None]
        self._tried = fading * self._tried + (step < tried).sum(axis=1)
        self._stood = fading * self._stood + (step < stood).sum(axis=1)
        if self.steps > 1:
            self._pause = LEAST_PAUSE
            return
        self._tried, self._stood = np.zeros_like(self._tried), np.zeros_like(self._stood)
        self._left, self._pause = self._pause, min(2 * self._pause, MOST_PAUSE)
