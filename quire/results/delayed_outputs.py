"""Answers of the background that ended but are not made yet. Hundreds may end in one step, and a
foreground request would wait while all of them are made."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as Many

from quire.scheduler.sequence import Sequence

# (least, share): between two steps at least so many are made, or 1 / share of those that wait. Each
# takes a tenth of a millisecond.
LATE, LATE_IN_A_HURRY = (64, 4), (8, 16)


class DelayedOutputs(deque[Sequence]):
    """Ended background sequences, in the order in which they ended."""

    _was_put_off = False

    def due(self, ended: Many[Sequence], may_wait: bool, *, is_hurried: bool) -> Iterator[Sequence]:
        """The sequences whose outputs are made now: all of the foreground that `ended` in this
        step, and some of the background. Those are put off, once, if they `may_wait` because the
        device waits for its next plan."""
        yield from (one for one in ended if not one.request.background)
        self += (one for one in ended if one.request.background)
        self._was_put_off = may_wait and not self._was_put_off
        if not self or self._was_put_off:
            return
        least, share = LATE_IN_A_HURRY if is_hurried else LATE
        for _ in range(min(max(least, len(self) // share), len(self))):
            yield self.popleft()
