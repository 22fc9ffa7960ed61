"""Rows that draw with masks are planned all together, or in turns: one half, then the other.

Such a row is planned again when its last token is known. If all are planned together, the device is
idle while the host follows grammars and plans, and the host is idle while the device computes. In
turns, the device computes one half while the host works for the other. That pays where a step of
half the rows takes much less time than one of all rows, and does not where both take as long as
reading the weights. Which one is faster is not known beforehand, so both are timed, and the faster
one is kept for a while.
"""

from __future__ import annotations

import statistics
from collections import deque

from quire.request import Ints
from quire.scheduler.rows import Rows
from quire.step import StepPlan

LEAST_ROWS = 16  # with fewer there is nothing to win
# In tokens of each row: how long one way is kept before the other is tried, at first and at most;
# how many tokens are timed, at least and at most, and how many are skipped before. A short batch
# ends before any trial, because steps of half the rows may have to be captured first.
KEPT, KEPT_AT_MOST, TIMED_AT_LEAST, TIMED, PASSED = 48, 4096, 3, 8, 2
KEPT_LONGER = 4  # times as long, when the other way was not faster
GAIN = 0.03  # share by which the other way must be faster
LOSS = 0.1  # share by which it must be slower for its trial to end at once
DISTURBED = 4.0  # a plan that took more than so many times the median counts as this


class Turns:
    """Which of the rows that draw with masks the next plan decodes."""

    def __init__(self, rows: Rows, *, overlap: bool) -> None:
        """`overlap`: a plan may be made while the result of another is awaited."""
        self.by_turns = False
        self._rows, self._overlap = rows, overlap
        # Of the last plans: (seconds, number of rows).
        self._times = deque[tuple[float, int]](maxlen=2 * (PASSED + TIMED))
        self._num_rows = 0
        self._kept, self._left = KEPT, KEPT
        self._usual: float | None = None  # seconds of a token the usual way, during a trial

    def among(self, ready: Ints, *, awaited: bool) -> Ints | None:
        """The rows of `ready` that the next plan decodes; None if it must wait until the rows of
        plans in flight (`awaited`) are ready, too."""
        rows = self._rows
        if not self._overlap or not len(ready) or not rows.guided[ready[0]]:
            return ready
        decoding = rows.running[rows.drawn[rows.running]]
        # With rows without masks the device is never idle. Beams may be parted: all wait for all.
        if not rows.guided[decoding].all():
            return ready
        if len(decoding) < LEAST_ROWS:
            return ready
        self._restart_if_changed(len(decoding))
        if self.by_turns:
            return ready[: -(-len(decoding) // 2)]
        return None if awaited else ready

    def observe(self, plan: StepPlan, seconds: float) -> None:
        """The result of a plan of one step came `seconds` after the one before."""
        if not self._num_rows or plan.masks is None or not len(plan.decode):
            return
        self._times.append((seconds, len(plan.decode)))
        self._left -= 1
        if self._left <= 0 or self._is_slower():
            self._turn()

    def _restart_if_changed(self, num_rows: int) -> None:
        """Begin anew when the number of rows has doubled or halved."""
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
        """Whether the other way is clearly slower, so that its trial can end."""
        if self._usual is None or len(self._times) < self._plans(PASSED + TIMED_AT_LEAST):
            return False
        return self._seconds_each(TIMED_AT_LEAST) > (1 + LOSS) * self._usual

    def _plans(self, tokens: int) -> int:
        """How many plans it takes to draw so many tokens for each row."""
        return 2 * tokens if self.by_turns else tokens

    def _seconds_each(self, tokens: int) -> float:
        """Seconds per token of a row, from the plans of the last `tokens` tokens of all rows."""
        times = list(self._times)[-self._plans(tokens) :]
        most = DISTURBED * statistics.median(seconds for seconds, _ in times)
        return sum(min(seconds, most) for seconds, _ in times) / sum(count for _, count in times)
