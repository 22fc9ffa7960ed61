"""Rows that draw with grammar masks go on without them for a few steps of a plan.

A row draws its first token of a plan with its mask and the next ones without. These are kept as far
as the grammar allows them. That is correct because noise depends on position and token alone: if
the best of all tokens is allowed, it is the best of the allowed ones, too. Masks change what top_k,
top_p and min_p leave, so a row with such limits goes on only while what it draws is within them
whatever the mask forbids (doubt_kernels.py). Most models write what the grammar wants: then the
host does its work for a plan once for several tokens. Rows of a model that does not soon draw all
tokens with masks, and going ahead is tried again now and then.

How far it pays depends on the model: on an H200 the host's work for a plan of 256 rows took as long
as five steps of a 0.1B model, and as 0.7 of a step of an 8B model. So plans are timed, and rows go
ahead as far as brings the most tokens a second.
"""

from __future__ import annotations

import statistics
from collections import deque

import numpy as np
import numpy.typing as npt

from quire.request import Ints

# Each plan multiplies the counts of earlier plans by FADING, or by more where few rows tried, so
# that about REMEMBERED rows count.
FADING, REMEMBERED = 0.7, 20
# Plans without a trial after one that did not pay, at first and at most: rows that began together
# are at the same place of their grammars, which may be an unusual one.
LEAST_PAUSE, MOST_PAUSE = 2, 256
TIMED, ALONE = 16, 4  # plans: the last ones that are timed; the first ones, without a trial
# Rows advance unevenly, and a batch takes as long as its last row: of some hundreds of rows, with
# 128 tokens each, that is about three standard deviations behind. This is its part in a plan.
BEHIND = 3 / 128**0.5


class Ahead:
    """Decides how far rows go ahead, from how far earlier ones got."""

    def __init__(self, most: int) -> None:
        """`most` steps that a plan may have."""
        # Of the last plans, fading: rows that tried each step without a mask, and that kept it.
        self._tried, self._stood = np.zeros(most - 1), np.zeros(most - 1)
        # Seconds of the last plans of one step, and of each further step of longer plans, all with
        # about `_num_rows` rows.
        self._alone, self._more = deque[float](maxlen=TIMED), deque[float](maxlen=TIMED)
        self._num_rows = 0
        self._pause, self._left = LEAST_PAUSE, ALONE
        self.steps = 1  # that such a row makes in the next plan

    def _paying(self) -> int:
        """The steps that bring the most tokens a second, at most twice as many as were tried."""
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
        """The share of rows that keep each step. Steps that were not tried yet are assumed to lose
        rows at the same rate."""
        known = int((self._tried >= 1).sum())
        shares = (self._stood[:known] + 1) / (self._tried[:known] + 1)
        most = min(max(2 * known, 1), len(self._tried))
        last, each = (shares[-1], shares[-1] ** (1 / known)) if known else (1.0, 1.0)
        return np.concatenate([shares, last * each ** np.arange(1, most - known + 1)])

    def observe(self, tried: Ints, stood: Ints) -> None:
        """Row i tried tried[i] steps without a mask, and kept stood[i] of them."""
        if not len(tried) or not tried.max():
            self._left = max(self._left - 1, 0)
            self.steps = self._paying()
            return
        fading = max(FADING, 1 - len(tried) / REMEMBERED)
        step = np.arange(len(self._tried))[:, None]
        self._tried = fading * self._tried + (step < tried).sum(axis=1)
        self._stood = fading * self._stood + (step < stood).sum(axis=1)

    def took(self, steps: int, seconds: float, num_rows: int) -> None:
        """The result of a plan of `steps` steps came `seconds` after the one before."""
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
        # The next trial is judged by itself: the steps of this one may have been captured as a
        # CUDA graph first, and that time must not count against later trials.
        self._tried, self._stood = np.zeros_like(self._tried), np.zeros_like(self._stood)
        self._more.clear()
        self._left, self._pause = self._pause, min(2 * self._pause, MOST_PAUSE)
