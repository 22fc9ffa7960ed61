"""Tokens that a grammar forces: a row gets them without drawing, where that saves time.

Forced tokens are a slice of the next plan. On a CPU a slice is a few more lines of the one pass. On
a GPU it is a pass of its own beside the captured step, so it must pay for all rows together.
Otherwise the row must draw these tokens: its masks allow nothing else until it has drawn them.
"""

from __future__ import annotations

from quire.base.boundary import for_row
from quire.errors import QuireError
from quire.scheduler.judging import Drawn
from quire.scheduler.pacing import Jump
from quire.scheduler.placements import Placements
from quire.scheduler.sequence import Sequence
from quire.scheduler.stopping import FOLLOWED, fail, judge

# Forced tokens per row that goes on, from which a pass for them pays: on an H200 such a pass took
# as long as 1.7 steps of 256 rows.
WORTH = 2


class Jumps:
    """Appends what grammars force to rows, or makes them draw it. Both give the same tokens; found
    anew in the middle of a forced text, it might be split into other tokens."""

    def __init__(self, placements: Placements) -> None:
        self._placements, self._rows = placements, placements.rows

    def take(self, drawn: Drawn) -> None:
        """Append forced tokens to rows that go on, and mark the rows that end with them."""
        wants = self._rows.jumps
        for row in drawn.going_on(wants == Jump.ALWAYS):
            self._append(drawn, row, self._forced(row))
        some = drawn.going_on(wants == Jump.IF_WORTH)
        forced = [self._forced(row) for row in some]
        count = sum(len(one) for one in forced if not isinstance(one, QuireError))
        worth = count >= WORTH * int((~drawn.ended).sum())
        for row, tokens in zip(some, forced, strict=True):
            if worth or isinstance(tokens, QuireError):
                self._append(drawn, row, tokens)
            else:
                self._must_draw(self._rows.sequence(row), tokens)

    def _forced(self, row: int) -> list[int] | QuireError:
        """The tokens a row must write next. They are found once, after a token that was free."""
        sequence = self._rows.sequence(row)
        if sequence.guide is None:
            return []
        if sequence.must_draw:
            return sequence.guide.must_draw
        return for_row(FOLLOWED, sequence.guide.forced)

    def _append(self, drawn: Drawn, row: int, forced: list[int] | QuireError) -> None:
        rows, sequence = self._rows, self._rows.sequence(row)
        sequence.must_draw = False
        if isinstance(forced, QuireError):
            fail(sequence, forced)
        elif tokens := forced[: int(rows.limit[row] - rows.known[row])]:
            kept = judge(sequence, tokens, int(rows.known[row] - rows.num_prompt[row]))
            self._placements.force(row, tokens[:kept])
        if sequence.finish_reason is not None:
            drawn.ended[drawn.rows == row] = True

    def _must_draw(self, sequence: Sequence, tokens: list[int]) -> None:
        sequence.must_draw = bool(tokens)
        if sequence.guide is not None and tokens:
            sequence.guide.must_draw = tokens
