"""Rows that draw by masks go on without them for a few steps.

A row draws its first token of a plan by its mask, and the next ones without: what was drawn so
stands as far as the grammar allows it. Noise belongs to a position and a token, so the likeliest of
all tokens, if the grammar allows it, is the likeliest of the allowed ones, too. A mask changes what
top_k, top_p and min_p leave, so a row with such limits goes on as long as what it draws is within
them whatever the mask forbids (doubt_kernels.py). A model that writes what its grammar wants, as
most do, is followed some tokens at a time, and what the host does for a plan is done for all of
them. One that does not is soon left to its masks, and asked again now and then.

How far it pays depends on the model: what the host does for a plan of 256 rows took an H200 as
long as five steps of 0.1B, and as long as 0.7 of one of 8B. So plans are timed, and rows go as far
as brings the most tokens in a second.
"""

from __future__ import annotations

import statistics
from collections import deque

import numpy as np
import numpy.typing as npt

from quire.request import Ints

# With each plan what earlier ones told fades to so much, and slower where it is of few rows: about
# so many are remembered.
FADING, REMEMBERED = 0.7, 20
# Plans for which nothing is tried when that did not pay, at first and at most: rows that began
# together are at the same place of their grammars, and that one may be odd.
LEAST_PAUSE, MOST_PAUSE = 2, 256
TIMED, ALONE = 16, 4  # plans: the last ones, and the first ones, before anything is tried
# Rows come differently far, and a batch takes as long as its last row: one of some hundreds, with
# 128 tokens, is about three deviations behind, of what so many plans bring.
BEHIND = 3 / 128**0.5


class Ahead:
    """How far rows go, by how far they came."""

    def __init__(self, most: int) -> None:
        """`most` steps that a plan may have."""
        # Of the last plans: rows that tried each step without a mask, and for which it stood.
        self._tried, self._stood = np.zeros(most - 1), np.zeros(most - 1)
        # Seconds of the last plans of one step, and of each step more of the others; of how many
        # rows these are.
        self._alone, self._more = deque[float](maxlen=TIMED), deque[float](maxlen=TIMED)
        self._num_rows = 0
        self._pause, self._left = LEAST_PAUSE, ALONE
        self.steps = 1  # of such a row in the next plan

    def _paying(self) -> int:
        """Steps that pay, of at most twice as many as were tried."""
        if self._left or not len(self._tried):
            return 1
        shares = self._shares()
        alone = statistics.median(self._alone or [1.0])
        more = statistics.median(self._more or [alone / 4])
        steps = 1 + np.arange(len(shares) + 1)
        tokens, squares = 1 + shares.cumsum(), 1 + ((2 * steps[1:] - 1) * shares).cumsum()
        spread = np.sqrt(np.maximum(squares - tokens**2, 0) * tokens)
        brought = np.concatenate([[1.0], tokens - BEHIND * spread])
        return int(steps[(brought / (alone + max(more, alone / 20) * (steps - 1))).argmax()])

    def _shares(self) -> npt.NDArray[np.float64]:
        """Of the rows those for which each step stands. Steps beyond those that were tried are
        taken to stand as these did, one after the other."""
        known = int((self._tried >= 1).sum())
        shares = (self._stood[:known] + 1) / (self._tried[:known] + 1)
        most = min(max(2 * known, 1), len(self._tried))
        last, each = (shares[-1], shares[-1] ** (1 / known)) if known else (1.0, 1.0)
        return np.concatenate([shares, last * each ** np.arange(1, most - known + 1)])

    def observe(self, tried: Ints, stood: Ints) -> None:
        """Rows tried so many steps each without a mask; so many of these stood."""
        if not len(tried) or not tried.max():
            self._left = max(self._left - 1, 0)
            self.steps = self._paying()
            return
        fading = max(FADING, 1 - len(tried) / REMEMBERED)
        step = np.arange(len(self._tried))[:, None]
        self._tried = fading * self._tried + (step < tried).sum(axis=1)
        self._stood = fading * self._stood + (step < stood).sum(axis=1)

    def took(self, steps: int, seconds: float, num_rows: int) -> None:
        """A plan of so many steps came so long after the one before."""
        if not self._num_rows / 2 <= num_rows <= self._num_rows * 2:
            # What held for many more rows, or many fewer, need not hold for these.
            self._num_rows, self._left, self.steps = num_rows, ALONE, 1
            self._alone.clear()
            self._more.clear()
        if steps == 1:
            self._alone.append(seconds)
            return
        if self._alone:
            self._more.append((seconds - statistics.median(self._alone)) / (steps - 1))
        self.steps = self._paying()
        if self.steps > 1:
            self._pause = LEAST_PAUSE
            return
        # The next trial is judged by itself: this one's steps may have had to be captured first,
        # and what they took then would speak against every later one.
        self._tried, self._stood = np.zeros_like(self._tried), np.zeros_like(self._stood)
        self._more.clear()
        self._left, self._pause = self._pause, min(2 * self._pause, MOST_PAUSE)
