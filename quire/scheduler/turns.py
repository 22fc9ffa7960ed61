"""Rows by masks are planned all together, or by turns: one half, then the other.

Such a row is planned again when its last token is known. All together, the device rests while the
host follows grammars and plans, and the host while the device computes. By turns, the device
computes one half while the host follows the other. That pays where half of the rows take it much
less than all of them, and does not where a step takes what reading the weights takes. How long
either of the two needs is not known beforehand, so both ways are timed, and the faster one is kept
for a while.
"""

from __future__ import annotations

import statistics
from collections import deque

from quire.request import Ints
from quire.scheduler.rows import Rows
from quire.step import StepPlan

LEAST_ROWS = 16  # with fewer there is nothing to win
# In tokens of all rows: how long one way is kept, at first and at most, before the other is tried;
# how many are timed, at least and at most, and how many pass before. A short batch ends before
# anything is tried: steps of half the rows may have to be captured first.
KEPT, KEPT_AT_MOST, TIMED_AT_LEAST, TIMED, PASSED = 48, 4096, 3, 8, 2
KEPT_LONGER = 4  # times as long, when the other way was not faster
GAIN = 0.03  # by which the other way must be faster
LOSS = 0.1  # by which it is slower when that is seen at once
DISTURBED = 4.0  # times as long as usual is counted as this


class Turns:
    """Which rows by masks the next plan decodes."""

    def __init__(self, rows: Rows, *, overlap: bool) -> None:
        """`overlap`: a plan may be made while another one is on its way."""
        self.by_turns = False
        self._rows, self._overlap = rows, overlap
        # Of the last plans: seconds, and their rows.
        self._times = deque[tuple[float, int]](maxlen=2 * (PASSED + TIMED))
        self._num_rows = 0
        self._kept, self._left = KEPT, KEPT
        self._usual: float | None = None  # what a token takes the usual way, while the other runs

    def among(self, ready: Ints, *, awaited: bool) -> Ints | None:
        """Those of the rows that could go on which the next plan is to decode; None if it is to be
        made when the others that are `awaited` are ready, too."""
        rows = self._rows
        if not self._overlap or not len(ready) or not rows.guided[ready[0]]:
            return ready
        decoding = rows.running[rows.drawn[rows.running]]
        # Rows without masks leave the device no rest. Beams may be parted: all wait for the last.
        if not rows.guided[decoding].all():
            return ready
        if len(decoding) < LEAST_ROWS:
            return ready
        self._meet(len(decoding))
        if self.by_turns:
            return ready[: -(-len(decoding) // 2)]
        return None if awaited else ready

    def observe(self, plan: StepPlan, seconds: float) -> None:
        """The result of a plan of one step was digested, so long after the one before."""
        if not self._num_rows or plan.masks is None or not len(plan.decode):
            return
        self._times.append((seconds, len(plan.decode)))
        self._left -= 1
        if self._left <= 0 or self._is_slower():
            self._turn()

    def _meet(self, num_rows: int) -> None:
        """What held for many more rows, or many fewer, need not hold for these."""
        if not self._num_rows / 2 <= num_rows <= self._num_rows * 2:
            self._num_rows, self._kept = num_rows, KEPT
            self._left = min(self._left, self._plans(KEPT))

    def _turn(self) -> None:
        """Try the other way, or choose between them."""
        timed = self._seconds_each(TIMED)
        self._times.clear()
        if self._usual is None:
            self._usual, self.by_turns = timed, not self.by_turns
            self._left = self._plans(PASSED + TIMED)
            return
        stays = timed > self._usual * (1 - GAIN)
        if stays:
            self.by_turns = not self.by_turns
        self._kept = min(KEPT_LONGER * self._kept, KEPT_AT_MOST) if stays else KEPT
        self._usual, self._left = None, self._plans(self._kept)

    def _is_slower(self) -> bool:
        """Whether the other way needs no more trying."""
        if self._usual is None or len(self._times) < self._plans(PASSED + TIMED_AT_LEAST):
            return False
        return self._seconds_each(TIMED_AT_LEAST) > (1 + LOSS) * self._usual

    def _plans(self, tokens: int) -> int:
        """How many plans bring so many tokens of each row."""
        return 2 * tokens if self.by_turns else tokens

    def _seconds_each(self, tokens: int) -> float:
        """What a token of one row took, by the last so many of all rows."""
        times = list(self._times)[-self._plans(tokens) :]
        most = DISTURBED * statistics.median(seconds for seconds, _ in times)
        return sum(min(seconds, most) for seconds, _ in times) / sum(count for _, count in times)
