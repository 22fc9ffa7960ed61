"""Samples and paths that leave a row where it is computed to, each into a row of its own."""

from __future__ import annotations

from collections.abc import Callable

from quire.request import Request
from quire.scheduler.draft import Draft
from quire.scheduler.placements import Placements
from quire.scheduler.scoring import Scoring, unfold
from quire.scheduler.waiting import Waiting


class Forking:
    """Gives siblings their rows, or puts them in the queue."""

    def __init__(
        self,
        placements: Placements,
        scoring: Scoring,
        waiting: Waiting,
        expected_output: Callable[[Request], float],
        clock: Callable[[], float],
    ) -> None:
        self._placements, self._rows = placements, placements.rows
        self._scoring, self._waiting = scoring, waiting
        self._expected_output, self._clock = expected_output, clock

    def leaves_here(self, lead: int) -> bool:
        """Whether the next sibling forks off where the lead is computed to."""
        sequence = self._rows.sequence(lead)
        return bool(sequence.siblings) and (sequence.tree is None or self._scoring.is_waiting(lead))

    def queue(self, lead: int) -> None:
        """Siblings that find no row wait in the queue by themselves."""
        while self.leaves_here(lead):
            self._waiting.add(self._rows.sequence(lead).siblings.pop(0), again=True)

    def fork(self, lead: int, draft: Draft) -> int:
        """The row of the next sibling."""
        sibling = self._rows.sequence(lead).siblings.pop(0)
        sibling.timings.scheduled = self._clock()
        unfold(sibling)
        return self._placements.fork(lead, sibling, self._expected_output(sibling.request), draft)

    def fork_all(self, lead: int, draft: Draft) -> list[int]:
        """Rows for the siblings that fork here; those that find none wait in the queue."""
        if not self._rows.sequence(lead).siblings:
            return []
        forked = []
        while self.leaves_here(lead) and self._rows.num_free:
            forked.append(self.fork(lead, draft))
        # Paths wait here for rows if others may leave one; siblings of a prompt are queued at once.
        if self._rows.sequence(lead).tree is None or len(self._rows.running) == 1:
            self.queue(lead)
        self._count_siblings(lead)
        return forked

    def fork_late(self, lead: int, draft: Draft, plan_chunk: Callable[[int, Draft], None]) -> None:
        """Give rows to paths that found none before, and plan the first tokens of each."""
        rows, pool = self._rows, self._placements.pool
        while self.leaves_here(lead) and rows.num_free and pool.fits(1) and draft.budget:
            plan_chunk(self.fork(lead, draft), draft)
        if len(rows.running) == 1 and draft.budget > 0:
            self.queue(lead)  # no other will leave a row or a block
            plan_chunk(lead, draft)
        self._count_siblings(lead)

    def _count_siblings(self, lead: int) -> None:
        self._rows.claim(lead, len(self._rows.sequence(lead).siblings))
