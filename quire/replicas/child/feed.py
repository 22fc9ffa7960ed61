"""Rows that the supervisor sends: given to the engine in windows, and back to the supervisor when
it recalls them for another engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator

from quire.replicas.board import Board, Phase
from quire.replicas.streams import Inbox, Send
from quire.replicas.wire import Message

Rows = list[Message]
_GATHER_SECONDS = 0.05  # how long an idle engine waits for a first window to fill


class Feed:
    """The rows of one run, in windows, until the supervisor says "end"."""

    def __init__(
        self, inbox: Inbox, first: Message | None, board: Board, window: int, send: Send
    ) -> None:
        self._inbox, self._board, self._window, self._send = inbox, board, window, send
        self._waiting: deque[Message] = deque(first["rows"] if first else ())
        self._ended = first is None
        # Cancels rows in the engine, running ones only if the flag is set; returns which.
        self.give_up: Callable[[Collection[int], bool], Collection[int]] = lambda rows, running: ()

    def windows(self, is_idle: Callable[[], bool]) -> Iterator[Rows]:
        """At most a window of rows each time; an empty one if none has come but more may, which
        happens only while the engine is busy."""
        while True:
            self._gather(wait=is_idle())
            if not self._waiting and self._ended:
                return
            rows = [self._waiting.popleft() for _ in range(min(self._window, len(self._waiting)))]
            yield rows

    def _gather(self, *, wait: bool) -> None:
        while not self._ended and len(self._waiting) < self._window:
            timeout: float | None = 0
            if wait:
                self._board.move(Phase.IDLE)
                timeout = _GATHER_SECONDS if self._waiting else None
            message = self._inbox.get(timeout)
            if message is None:
                break
            self._take(message)
        self._board.move(Phase.WORKING)

    def look(self) -> None:
        """Read the messages that came, without waiting; called between two steps."""
        while not self._ended and (message := self._inbox.get(0)) is not None:
            self._take(message)

    def _take(self, message: Message) -> None:
        if message["kind"] == "end":
            self._ended = True
        elif message["kind"] == "recall":
            self._recall(set(message["rows"]), bool(message["running"]))
        else:
            self._waiting.extend(message["rows"])

    def _recall(self, wanted: set[int], running: bool) -> None:
        """Give rows back; every recall gets one answer, maybe with no rows."""
        here = {row["row"] for row in self._waiting} & wanted
        self._waiting = deque(row for row in self._waiting if row["row"] not in here)
        given = here.union(self.give_up(wanted - here, running))
        self._send({"kind": "returned", "rows": sorted(given)})

    def rest(self) -> Rows:
        """All rows, after waiting for the end of the run."""
        while not self._ended:
            self._gather(wait=True)
            self._window = len(self._waiting) + 1024
        return list(self._waiting)
