"""How prompts share a pass with each other, and with requests that wait to begin.

Computing prompts one after the other, in order of admission, is the least work. But where requests
may come at any time, all would wait for a prompt of thousands of tokens. So there no request gets
more of a pass than others may have to wait for. The request that came first gets what the others do
not need, and at least half of the pass; of the others those with the fewest tokens left go first.
So a long prompt takes at most twice as long as alone, and a short one begins with the next pass.
"""

from __future__ import annotations

import numpy as np

from quire.request import Request
from quire.scheduler.admission import Admission
from quire.scheduler.chunks import Chunks
from quire.scheduler.draft import Draft
from quire.scheduler.lanes import Lanes
from quire.scheduler.rows import Rows
from quire.scheduler.waiting import Waiting


class Shares:
    """Puts the next tokens of begun prompts into a draft."""

    def __init__(
        self, rows: Rows, lanes: Lanes, waiting: Waiting, admission: Admission, chunks: Chunks
    ) -> None:
        self._rows, self._lanes, self._waiting = rows, lanes, waiting
        self._admission, self._chunks = admission, chunks

    def plan(self, draft: Draft) -> None:
        """Plan the prompts that were begun. Those of the background come last, within the tokens
        that are spare for them."""
        rows = self._rows
        begun = rows.running[~rows.drawn[rows.running]]
        in_turn = begun[np.argsort(rows.background[begun], kind="stable")].tolist()
        if in_turn and self._is_shared(first := rows.sequence(in_turn[0]).request):
            own = [row for row in in_turn if rows.sequence(row).request is first]
            in_turn = [row for row in in_turn if rows.sequence(row).request is not first]
            in_turn.sort(key=lambda row: (rows.background[row], self._left(row)))
            needed = self._needed(in_turn, draft.budget)
            self._plan_within(own, draft, max(draft.budget - needed, -(-draft.budget // 2)))
        for row in in_turn:
            self._chunks.plan(row, draft)

    def begin(self, row: int, draft: Draft) -> None:
        """Plan the first tokens of a sequence that was admitted."""
        if self._is_shared(self._rows.sequence(row).request):
            self._plan_within([row], draft, draft.budget)
        else:
            self._chunks.plan(row, draft)

    def _is_shared(self, request: Request) -> bool:
        """Whether this request must share the pass, and can be cut anywhere to do so."""
        in_parts = not (request.media or request.whole or request.heard is not None)
        return self._lanes.is_serving and in_parts and not request.background

    def _plan_within(self, own: list[int], draft: Draft, share: int) -> None:
        share = min(share, self._lanes.longest_pass(draft.budget))
        others, spare = draft.budget - share, draft.spare
        draft.budget = share
        for row in own:
            self._chunks.plan(row, draft)
        draft.budget += others
        draft.spare = min(spare, draft.budget)

    def _needed(self, others: list[int], budget: int) -> int:
        """Tokens that other foreground requests could compute now. All waiting requests count as
        if they had as many tokens as the next of them."""
        needed = sum(self._left(row) for row in others if not self._rows.background[row])
        waiting = self._waiting.first_in_foreground
        if waiting is not None and self._admission.takes(waiting, 1, budget):
            needed += waiting.num_tokens * self._waiting.num_foreground
        return needed

    def _left(self, row: int) -> int:
        return int(self._rows.planned[row] - self._rows.computed[row])
