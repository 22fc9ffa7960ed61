"""Tokens that grammars force: a row is given them without drawing, where that saves time.

What it is given is a slice of the next plan. On a CPU a slice is a few more lines of the one pass;
on a GPU it is a pass of its own beside the captured step, and the masks of a forced token leave
nothing else to draw anyway. So there it must be worth it for all rows together.
"""

from __future__ import annotations

from quire.base.boundary import for_row
from quire.errors import QuireError
from quire.scheduler.judging import Drawn
from quire.scheduler.pacing import Jump
from quire.scheduler.placements import Placements
from quire.scheduler.stopping import FOLLOWED, fail, judge

# Forced tokens per row that goes on, from which a pass for them pays: on an H200 such a pass took
# as long as 1.7 steps of 256 rows.
WORTH = 2
ASKED_FIRST = 8  # rows that stand for all: asking a grammar takes the tokenizer


class Jumps:
    """Gives rows what their grammars force."""

    def __init__(self, placements: Placements) -> None:
        self._placements, self._rows = placements, placements.rows

    def take(self, drawn: Drawn) -> None:
        """Append to rows that go on what must come next, and mark those that end with it."""
        wants = self._rows.jumps
        for row in drawn.going_on(wants == Jump.ALWAYS):
            self._append(drawn, row, self._forced(row))
        some = drawn.going_on(wants == Jump.IF_WORTH)
        if not some:
            return
        least = WORTH * int((~drawn.ended).sum()) / len(some)
        if _mean([self._forced(row) for row in some[:: -(-len(some) // ASKED_FIRST)]]) < least:
            return
        forced = [self._forced(row) for row in some]
        if _mean(forced) >= least:
            for row, tokens in zip(some, forced, strict=True):
                self._append(drawn, row, tokens)

    def _forced(self, row: int) -> list[int] | QuireError:
        guide = self._rows.sequence(row).guide
        return [] if guide is None else for_row(FOLLOWED, guide.forced)

    def _append(self, drawn: Drawn, row: int, forced: list[int] | QuireError) -> None:
        rows, sequence = self._rows, self._rows.sequence(row)
        if isinstance(forced, QuireError):
            fail(sequence, forced)
        elif tokens := forced[: int(rows.limit[row] - rows.known[row])]:
            kept = judge(sequence, tokens, int(rows.known[row] - rows.num_prompt[row]))
            self._placements.force(row, tokens[:kept])
        if sequence.finish_reason is not None:
            drawn.ended[drawn.rows == row] = True


def _mean(forced: list[list[int] | QuireError]) -> float:
    """Tokens a row; one that failed has none, and fails again when its mask is filled."""
    return sum(len(one) for one in forced if not isinstance(one, QuireError)) / len(forced)
