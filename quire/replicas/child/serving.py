"""The main loop of an engine's process, from its first message to its last."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Protocol

from quire.replicas.board import Board, Phase
from quire.replicas.child.feed import Feed, Rows
from quire.replicas.child.heartbeat import Heartbeat
from quire.replicas.child.process import exit_code, private
from quire.replicas.streams import Inbox, Send, sender
from quire.replicas.wire import Message


class RowEngine(Protocol):
    """An engine that answers rows."""

    def facts(self) -> Message:
        """Facts that are sent to the parent when the engine is ready."""
        ...

    def run(self, feed: Feed, send: Send) -> None:
        """Answer every row of the feed with a "result"."""

    def plan(self, rows: Rows) -> str:
        """What it would take to answer these rows, in words."""
        ...


def serve(board_number: int, make: Callable[[Message, Board], RowEngine]) -> int:
    """Make the engine that the first message asks for, and answer runs until the parent closes its
    end; returns the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    board = Board(board_number)
    inbox, send = Inbox(private(0)), sender(private(1))
    opening = inbox.get()
    if opening is None:
        return 2
    board.move(Phase.LOADING)
    return exit_code(lambda: _answer_runs(make(opening, board), inbox, send, board), send)


def _answer_runs(engine: RowEngine, inbox: Inbox, send: Send, board: Board) -> None:
    facts = engine.facts()
    Heartbeat(board)
    send({"kind": "ready", **facts})
    while True:
        board.move(Phase.IDLE)
        message = inbox.get()
        if message is None or message["kind"] == "close":
            return
        if message["kind"] != "rows":  # it belongs to a run that has ended meanwhile
            if message["kind"] == "recall":
                send({"kind": "returned", "rows": []})
            continue
        feed = Feed(inbox, message, board, 4 * int(facts["capacity"]), send)
        if message.get("plan"):
            send({"kind": "plan", "text": engine.plan(feed.rest())})
        else:
            engine.run(feed, send)
        board.show_rows(())
        send({"kind": "drained"})
