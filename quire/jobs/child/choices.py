"""Rows answered by scoring: how likely each continuation of the row's context is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.errors import BatchError, InvalidRequest, NotSupported, QuireError
from quire.jobs.board import Board
from quire.jobs.child.feed import Feed, Rows, Send
from quire.jobs.child.tally import Tally, session_facts
from quire.jobs.child.watched import WatchedExecutor
from quire.jobs.prompts import Preamble
from quire.jobs.requests import failed
from quire.jobs.wire import Message

if TYPE_CHECKING:
    from quire.outputs import ContinuationScore, RequestOutput
    from quire.session.session import Session

Scores = list["ContinuationScore"]


class ContinuationEngine:
    """Scores the continuations of each row's context, window by window."""

    def __init__(self, session: Session, opening: Message, board: Board, files: Message) -> None:
        self._session, self._board, self._files = session, board, files
        few_shot = tuple(map(tuple, opening.get("few_shot", ())))
        self._preamble = Preamble(opening.get("system"), few_shot)
        self._held: list[int] = []
        self._tally = Tally(session)
        engine = session.engine
        engine.executor = WatchedExecutor(engine.executor, board, lambda: self._held)

    def facts(self) -> Message:
        return {**session_facts(self._session), "chat": False, **self._files}

    def run(self, feed: Feed, send: Send) -> None:
        for rows in feed.windows(lambda: True):
            self._held = [row["row"] for row in rows]
            self._board.show_rows(self._held)
            for row, found in zip(rows, self._scores(rows, send), strict=True):
                if isinstance(found, QuireError):
                    send(failed(row["row"], found))
                else:
                    send(self._result(row, found))

    def _scores(self, rows: Rows, send: Send) -> list[Scores | QuireError]:
        """The scores of each row, or its error: one bad row does not cost the others."""
        contexts = [self._preamble.text(row["prompt"]) for row in rows]
        endings = [row["continuations"] for row in rows]
        try:
            with self._session.turn():
                call = self._session.score_call(contexts, endings)
                outputs: dict[int, RequestOutput] = {}
                for place, output in self._session.run(
                    call.windows(), lambda: self._tally.tell(send)
                ):
                    outputs[place] = output
                    self._tally.count(output)
                return list(call.scores([outputs[i] for i in range(len(outputs))]))
        except BatchError as error:
            return [error.errors.get(i, found) for i, found in enumerate(error.outputs)]
        except (InvalidRequest, NotSupported) as error:
            if len(rows) == 1:
                return [error]
            return [found for row in rows for found in self._scores([row], send)]

    def _result(self, row: Message, scores: Scores) -> Message:
        """The likeliest continuation as the answer, and every score beside it."""
        best = max(range(len(scores)), key=lambda i: scores[i].logprob)
        tokenizer, context = self._session.model.tokenizer, self._preamble.text(row["prompt"])
        return {
            "kind": "result",
            "row": row["row"],
            "outputs": [row["continuations"][best]],
            "finish_reasons": ["stop"],
            "prompt_tokens": 0 if tokenizer is None else len(tokenizer.encode(context)),
            "output_tokens": sum(score.num_tokens for score in scores),
            "continuations": {
                "logprobs": [score.logprob for score in scores],
                "greedy": [score.is_greedy for score in scores],
                "tokens": [score.num_tokens for score in scores],
            },
        }

    def plan(self, rows: Rows) -> str:
        num_endings = sum(len(row["continuations"]) for row in rows)
        return f"Plan\n  requests   {len(rows):,} contexts with {num_endings:,} continuations"
