"""Runs rows through the session's one drive loop, and sends each row's result as it finishes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from quire.replicas.board import Board
from quire.replicas.child.feed import Feed, Rows
from quire.replicas.child.tally import Tally
from quire.replicas.child.watched import WatchedExecutor
from quire.replicas.streams import Send
from quire.replicas.wire import Message

if TYPE_CHECKING:
    from quire.outputs import RequestOutput
    from quire.request import Request
    from quire.run import Refused, Run, Window
    from quire.session.session import Session

# Windows of (row, request), made from rows of the feed; an empty window lets the engine go on.
NumberedRequests = list[tuple[int, "Request | Refused"]]


class Driver:
    """Maps requests to rows, writes to the board which rows are on the device, and sends
    metrics."""

    def __init__(self, session: Session, board: Board) -> None:
        self._session, self._board = session, board
        self._rows: dict[int, int] = {}  # request number -> row
        self._given_up: set[int] = set()  # rows whose outputs are not wanted any more
        # The next requests of rows that need several.
        self.follow: NumberedRequests = []
        self.rows_go_on = False
        self._tally = Tally(session)
        engine = session.engine
        engine.executor = WatchedExecutor(engine.executor, board, self._held)

    def _held(self) -> list[int]:
        sequences = self._session.engine.scheduler.rows.sequences
        numbers = {sequence.request.number for sequence in sequences if sequence is not None}
        return [self._rows[number] for number in numbers if number in self._rows]

    def run(
        self,
        feed: Feed,
        send: Send,
        ask: Callable[[Rows], Iterable[NumberedRequests]],
        result: Callable[[int, RequestOutput], Message | None],
    ) -> None:
        """Answer every row of the feed. `ask` makes windows of rows; `result` makes the message of
        a row's output, or returns None if the row's next request is in `follow`."""
        indices: dict[int, int] = {}  # index in the run -> row

        def between_steps() -> None:
            feed.look()
            self._tally.tell(send)

        with self._session.turn():
            run = self._session.new_run(between_steps)
            feed.give_up = partial(self._give_up, run)
            for place, output in run.outputs(self._windows(feed, ask, indices)):
                row = indices.pop(place)
                self._rows.pop(int(output.request_id), None)
                if row in self._given_up:
                    self._given_up.discard(row)
                    continue
                self._tally.count(output)
                if (message := result(row, output)) is not None:
                    send(message)
            self._tally.tell(send, at_once=True)  # includes the rows since the last message

    def _give_up(self, run: Run, rows: Collection[int], running: bool) -> list[int]:
        """Cancel rows in the engine, those on the device only if `running`; returns which."""
        on_device = set() if running else set(self._held())
        mine = [(n, row) for n, row in self._rows.items() if row in rows and row not in on_device]
        for number, row in mine:
            self._given_up.add(row)
            run.cancel(number)
        return [row for _, row in mine]

    def _windows(
        self, feed: Feed, ask: Callable[[Rows], Iterable[NumberedRequests]], indices: dict[int, int]
    ) -> Iterator[Window]:
        def is_idle() -> bool:
            # Not engine.idle: rows whose grammar is being compiled are not in the engine yet.
            return not self._rows and not self.follow

        places = count()

        def window(asked: NumberedRequests) -> Window:
            for row, item in asked:
                self._rows[item.number] = indices[next(places)] = row
            return [item for _, item in asked]

        for rows in feed.windows(is_idle):
            followed = self._followed()
            if followed or not rows:
                yield window(followed)
            if not rows:
                continue
            self._board.show_rows([*self._held(), *(row["row"] for row in rows)])
            for asked in ask(rows):
                yield window(asked)
        while self.rows_go_on and (self._rows or self.follow):
            yield window(self._followed())

    def _followed(self) -> NumberedRequests:
        taken, self.follow = self.follow, []
        return taken


def timings_of(output: RequestOutput) -> list[float | None]:
    """Seconds from queueing to the device, to the first token (None if none is drawn) and to the
    end."""
    metrics = output.metrics
    moments = (metrics.scheduled_ts, metrics.first_token_ts, metrics.last_token_ts)
    return [round(max(at - metrics.queued_ts, 0.0), 4) if at else None for at in moments]
