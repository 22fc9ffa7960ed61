"""Rows answered by a session: prompts and conversations, by the one drive loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from quire.errors import QuireError
from quire.jobs.board import Board
from quire.jobs.child.feed import Feed, Rows, Send
from quire.jobs.child.tally import Tally, session_facts
from quire.jobs.child.watched import WatchedExecutor
from quire.jobs.prompts import Preamble
from quire.jobs.requests import RequestReader, failed
from quire.jobs.wire import Message

if TYPE_CHECKING:
    from quire.outputs import RequestOutput
    from quire.run import Window
    from quire.session.session import Session


class SessionEngine:
    """Answers rows with a session: prompts and conversations, by the one drive loop."""

    def __init__(self, session: Session, opening: Message, board: Board, files: Message) -> None:
        self._session, self._board, self._files = session, board, files
        tokenizer = session.model.tokenizer
        has_template = tokenizer is not None and bool(tokenizer.chat_templates)
        wanted = opening.get("chat")
        self._chat = has_template if wanted is None else bool(wanted)
        preamble = Preamble(opening.get("system"), tuple(map(tuple, opening.get("few_shot", ()))))
        self._reader = RequestReader(
            tokenizer, preamble, opening.get("settings", ({},)), chat=self._chat
        )
        self._rows: dict[int, int] = {}  # request number -> row
        engine = session.engine
        engine.executor = WatchedExecutor(engine.executor, board, self._held)
        self._tally = Tally(session)

    def _held(self) -> list[int]:
        sequences = self._session.engine.scheduler.rows.sequences
        numbers = {sequence.request.number for sequence in sequences if sequence is not None}
        return [self._rows[number] for number in numbers if number in self._rows]

    def facts(self) -> Message:
        return {**session_facts(self._session), "chat": self._chat, **self._files}

    def run(self, feed: Feed, send: Send) -> None:
        def is_idle() -> bool:
            # Not the engine's own word: rows whose grammar is being compiled are not in it yet.
            return not self._rows

        def between_steps() -> None:
            self._tally.tell(send)

        indices: dict[int, int] = {}  # place in the run -> row

        def windows() -> Iterator[Window]:
            place = 0
            for rows in feed.windows(is_idle):
                window = self._window(rows, send)
                for item in window:
                    indices[place] = self._rows[item.number]
                    place += 1
                yield window

        with self._session.turn():
            for place, output in self._session.run(windows(), between_steps):
                row = indices.pop(place)
                self._rows.pop(int(output.request_id), None)
                self._tally.count(output)
                send(_result(row, output))
            self._tally.tell(send, at_once=True)  # what came after the last second

    def _window(self, rows: Rows, send: Send) -> Window:
        """The requests of these rows; those that cannot be made are answered at once."""
        if not rows:
            return []
        self._board.show_rows([*self._held(), *(row["row"] for row in rows)])
        made = []
        for row, request in zip(rows, self._reader.read(rows), strict=True):
            if isinstance(request, QuireError):
                send(failed(row["row"], request))
            else:
                made.append(request)
        window = self._session.intake.window(
            [request.prompt for request in made], [request.params for request in made]
        )
        for item, request in zip(window, made, strict=True):
            self._rows[item.number] = request.row
        return window

    def plan(self, rows: Rows) -> str:
        made = [r for r in self._reader.read(rows) if not isinstance(r, QuireError)]
        prompts, params = [r.prompt for r in made], [r.params for r in made]
        with self._session.turn():
            return self._session.plan(prompts, params, None, lambda: None).explain()


def _result(row: int, output: RequestOutput) -> Message:
    if output.error is not None:
        return failed(row, output.error)
    metrics = output.metrics
    times = [
        metrics.scheduled_ts - metrics.queued_ts,
        metrics.first_token_ts - metrics.queued_ts,
        metrics.last_token_ts - metrics.queued_ts,
    ]
    return {
        "kind": "result",
        "row": row,
        "outputs": [answer.text for answer in output.outputs],
        "finish_reasons": [answer.finish_reason for answer in output.outputs],
        "prompt_tokens": len(output.prompt_token_ids or ()),
        "output_tokens": sum(len(answer.token_ids) for answer in output.outputs),
        "timings": [round(max(t, 0.0), 4) for t in times],
    }
