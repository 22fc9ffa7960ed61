"""Prompts in chunks: as many of a row's next tokens as a plan has room for.

At the end of its prompt a row draws, and so do the samples that fork off there. A path that is
scored (scoring.py) draws nothing; paths that fork off it go on by themselves.
"""

from __future__ import annotations

from quire.base.boundary import for_row
from quire.errors import QuireError
from quire.scheduler.beams import Beams
from quire.scheduler.draft import Draft
from quire.scheduler.forking import Forking
from quire.scheduler.hidden import hidden_of
from quire.scheduler.media import MediaPlans
from quire.scheduler.placements import Placements
from quire.scheduler.reports import Reports
from quire.scheduler.scoring import Scoring, fork_point, targets_of
from quire.step import Slice

PREPARING = "its media were prepared again"


class Chunks:
    """Puts slices of rows whose prompt is not computed yet into a draft."""

    def __init__(
        self,
        placements: Placements,
        scoring: Scoring,
        beams: Beams,
        forking: Forking,
        media: MediaPlans,
        reports: Reports,
    ) -> None:
        self._placements, self._pool, self._rows = placements, placements.pool, placements.rows
        self._scoring, self._beams, self._forking = scoring, beams, forking
        self._media, self._reports = media, reports

    def plan(self, row: int, draft: Draft) -> None:
        """As many of a row's next tokens as there is room for; of a search that was preempted, also
        those of its further beams."""
        if self._scoring.is_waiting(row):
            return self._forking.fork_late(row, draft, self.plan)
        following: int | None = row
        while following is not None and self._plan_next(following, draft):
            following = self._beams.begin_next(following, draft)

    def _plan_next(self, row: int, draft: Draft) -> bool:
        """Plan the next tokens of one row; True if nothing is left to compute of it after that."""
        left = int(self._rows.planned[row] - self._rows.computed[row])
        chunk = self._with_media(row, min(left, self._most_tokens(row, draft)))
        if chunk <= 0:
            return False
        self._plan_slice(row, chunk, draft)
        return chunk == left

    def _most_tokens(self, row: int, draft: Draft) -> int:
        """How many tokens there are blocks for, within the row's share of the budget."""
        rows, pool = self._rows, self._pool
        spare = pool.num_free // pool.num_groups - self._placements.num_shared_tails(row)
        if spare < 0:
            return 0
        room = (int(rows.num_blocks[row]) + spare) * pool.block_size - int(rows.computed[row])
        return min(room, draft.spare if rows.background[row] else draft.budget)

    def _with_media(self, row: int, chunk: int) -> int:
        """As many of these tokens as can have their media encoded by this plan."""
        request, start = self._rows.sequence(row).request, int(self._rows.computed[row])
        if chunk <= 0 or (not request.media and request.heard is None):
            return chunk
        reached = for_row(PREPARING, self._media.reach, request, start, start + chunk)
        if isinstance(reached, QuireError):
            self._reports.fail(self._beams.take_out(row), reached)
            return 0
        return reached - start

    def _plan_slice(self, row: int, chunk: int, draft: Draft) -> None:
        """Compute the next `chunk` tokens of a row; at their end the row and its siblings draw."""
        rows, sequence = self._rows, self._rows.sequence(row)
        start, published = int(rows.computed[row]), int(rows.num_published[row])
        leaving = fork_point(sequence)
        end = start + chunk if leaving is None else min(start + chunk, leaving)
        if rows.renewed[row]:
            self._placements.restart(row, draft)
        if self._placements.num_shared_tails(row):
            self._placements.copy_tail(row, draft)
        rows.forked[row] = False
        self._placements.grow_to(row, end, draft)
        rows.computed[row] = end
        self._placements.publish(row, rows.token_ids[row], end)
        self._scoring.promise(row, published)
        drawing: tuple[int, ...] = ()
        if sequence.tree is not None:
            if end == leaving:
                self._forking.fork_all(row, draft)  # each path goes on by itself
        elif end == rows.planned[row] and sequence.request.hidden is None:
            drawing = (row, *self._forking.fork_all(row, draft))
            for one in drawing:
                rows.planned[one], rows.drawn[one] = rows.planned[one] + 1, True
        media, coordinates, two_way = self._media.shown(sequence.request, start, end)
        hidden, hidden_from = hidden_of(sequence.request, start, end)
        draft.prefill.append(
            Slice(
                row,
                start,
                rows.fed_ids[row][start:end],
                sample_into=drawing,
                targets=targets_of(sequence, start, end),
                hidden=hidden,
                hidden_from=hidden_from,
                media=media,
                coordinates=coordinates,
                two_way=two_way,
            )
        )
        draft.budget -= end - start
        draft.spare = min(draft.spare - (end - start) * int(rows.background[row]), draft.budget)
