"""Answers of the background that ended and are not made yet: hundreds may end in one step, and who
waits for the next one would wait for all of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as Many

from quire.scheduler.sequence import Sequence

# Between two steps at least so many are made, or such a part of those that ended: each takes a
# tenth of a millisecond.
LATE, LATE_IN_A_HURRY = (64, 4), (8, 16)


class Late(deque[Sequence]):
    """In the order in which they ended."""

    _was_put_off = False

    def due(self, ended: Many[Sequence], may_wait: bool, *, is_hurried: bool) -> Iterator[Sequence]:
        """Those whose answers are made now: of what `ended` in this step all that others wait for,
        and some of the background. That waits while the device waits for its next plan, where it
        `may_wait`; once, since there may be nothing to plan."""
        yield from (one for one in ended if not one.request.background)
        self += (one for one in ended if one.request.background)
        self._was_put_off = may_wait and not self._was_put_off
        if not self or self._was_put_off:
            return
        least, share = LATE_IN_A_HURRY if is_hurried else LATE
        for _ in range(min(max(least, len(self) // share), len(self))):
            yield self.popleft()
