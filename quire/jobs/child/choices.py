"""Rows answered by scoring: how likely each continuation of the row's context is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from quire.errors import QuireError
from quire.jobs.child.job_engine import JobEngine, answered
from quire.jobs.child.requests import refuse_far_too_long, result_or_error
from quire.jobs.input.prompts import Preamble
from quire.replicas.board import Board
from quire.replicas.child.driving import NumberedRequests
from quire.replicas.child.feed import Rows
from quire.replicas.streams import Send
from quire.replicas.wire import Message
from quire.request import Request

if TYPE_CHECKING:
    from quire.outputs import RequestOutput
    from quire.session.scoring import ScoreCall
    from quire.session.session import Session

# Rows read before the first step: contexts are long, and the engine can begin with the first ones.
FEW_ROWS = 16
PROBE_ROWS = 16  # run to measure the machine


class ContinuationEngine(JobEngine):
    """Scores the continuations of each row's context. Every row has one context, so it is one
    request."""

    def __init__(self, session: Session, opening: Message, board: Board, files: Message) -> None:
        super().__init__(session, board, files)
        few_shot = tuple(map(tuple, opening.get("few_shot", ())))
        self._preamble = Preamble(opening.get("system"), few_shot)
        self._asked_of: dict[int, tuple[ScoreCall, list[str]]] = {}  # row -> its call, its endings
        self._at_once = FEW_ROWS

    def _windows(self, rows: Rows, send: Send) -> Iterator[NumberedRequests]:
        """Windows that grow from FEW_ROWS, with a step of the engine after each."""
        at = 0
        while at < len(rows):
            yield self._window(rows[at : at + self._at_once], send)
            yield []
            at += self._at_once
            self._at_once = min(2 * self._at_once, self._session.engine.scheduler.rows.capacity)

    def _requests(self, rows: Rows) -> list[Request | QuireError]:
        return [self._request(row) for row in rows]

    def _request(self, row: Message) -> Request | QuireError:
        return result_or_error(lambda: self._made(row))

    def _made(self, row: Message) -> Request:
        endings, context = row["continuations"], self._preamble.text(row["prompt"])
        model = self._session.model
        refuse_far_too_long(context, model.tokenizer, model.config.max_model_len)
        call = self._session.score_call([context], [endings])
        [request] = [r for window in call.windows() for r in window if isinstance(r, Request)]
        self._asked_of[row["row"]] = call, endings
        return request

    def _answer(self, row: int, output: RequestOutput) -> Message:
        """The likeliest continuation as the answer, and every score beside it."""
        call, endings = self._asked_of.pop(row)
        [scores] = call.results([output])
        best = max(range(len(scores)), key=lambda i: scores[i].logprob)
        return answered(
            row,
            output,
            [endings[best]],
            output_tokens=sum(score.num_tokens for score in scores),
            continuations={
                "logprobs": [score.logprob for score in scores],
                "greedy": [score.is_greedy for score in scores],
                "tokens": [score.num_tokens for score in scores],
            },
        )

    def _failed(self, row: int, error: QuireError) -> Message:
        self._asked_of.pop(row, None)
        return super()._failed(row, error)

    def plan(self, rows: Rows) -> str:
        """The plan as text: tokens to compute, and an estimate from the speed of a few rows."""
        made = [r for r in self._requests(rows) if not isinstance(r, QuireError)]
        num_endings = sum(len(request.continuations) for request in made)
        lines = [f"requests   {len(made):,} contexts with {num_endings:,} continuations"]
        if made:
            lines += self._estimate(made)
        return "\n  ".join(["Plan", *lines])

    def _estimate(self, made: list[Request]) -> list[str]:
        evenly = made[:: max(1, len(made) // PROBE_ROWS)][:PROBE_ROWS]
        computed = sum(map(_num_computed, evenly))
        with self._session.turn():
            began = time.monotonic()
            for _, output in self._session.run([list(evenly)], lambda: None):
                computed -= output.num_cached_tokens or 0
            seconds = time.monotonic() - began
        pool = self._session.engine.scheduler.pool
        known = sum(len(pool.match(r.prompt_ids)) * pool.block_size for r in made)
        left = max(0, sum(map(_num_computed, made)) - known)
        speed = computed / max(seconds, 1e-9)
        return [
            f"tokens     {left:,} to compute; {known:,} are of beginnings that rows share",
            f"estimate   {left / speed:,.1f} s at {speed:,.0f} tokens/s, from {len(evenly)} rows",
        ]


def _num_computed(request: Request) -> int:
    """Tokens that the model reads; the last token of a continuation is only scored."""
    return request.num_prompt + sum(len(tokens) - 1 for tokens in request.continuations)
