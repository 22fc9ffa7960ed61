"""Start the engine, say that it is ready, answer runs until the supervisor closes."""

from __future__ import annotations

import argparse
import signal
import sys
from importlib import import_module
from typing import Protocol

from quire.errors import QuireError
from quire.jobs.child.feed import Feed, Rows
from quire.replicas.board import Board, Phase
from quire.replicas.child.heartbeat import Heartbeat
from quire.replicas.child.process import error_family, is_about_memory, private
from quire.replicas.streams import Inbox, Send, sender
from quire.replicas.wire import Message


class JobEngine(Protocol):
    """What answers the rows of a job."""

    def facts(self) -> Message:
        """What the supervisor is told when it is ready."""

    def run(self, feed: Feed, send: Send) -> None:
        """Answer every row of the feed with a "result"."""

    def plan(self, rows: Rows) -> str:
        """What answering these rows would take, in words."""


def main() -> int:
    arguments = _arguments()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor decides what a Ctrl-C means
    board = Board(arguments.board)
    inbox, send = Inbox(private(0)), sender(private(1))
    opening = inbox.get()
    if opening is None:
        return 2
    try:
        _serve(_made(arguments.engine, opening, board), inbox, send, board)
    except QuireError as error:
        send({"kind": "failed", "error": str(error), "error_type": error_family(error)})
        return 1
    except (MemoryError, RuntimeError) as error:
        if not is_about_memory(error):
            raise
        send({"kind": "failed", "error": f"memory ran out: {error}", "error_type": "memory"})
        return 1
    return 0


def _serve(engine: JobEngine, inbox: Inbox, send: Send, board: Board) -> None:
    """Say that it is ready, then answer runs until the supervisor closes."""
    facts = engine.facts()
    Heartbeat(board)
    send({"kind": "ready", **facts})
    while True:
        board.move(Phase.IDLE)
        message = inbox.get()
        if message is None or message["kind"] == "close":
            return
        if message["kind"] != "rows":  # about a run that has ended meanwhile
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


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m quire.jobs.child")
    parser.add_argument("--board", type=int, required=True, help="the shared file's number")
    # Tests put an engine without a model here; nothing in quire passes it.
    parser.add_argument("--engine", help="MODULE:FACTORY that makes the engine")
    return parser.parse_args()


def _made(factory: str | None, opening: Message, board: Board) -> JobEngine:
    board.move(Phase.LOADING)
    if factory is not None:
        module, name = factory.split(":")
        made: JobEngine = getattr(import_module(module), name)(opening, board)
        return made
    from quire.jobs.child.files import files_of

    model, options = opening["model"], dict(opening["options"])
    files = files_of(model, options)
    from quire.options import parse_options
    from quire.session.session import Session

    session = Session.open(model, parse_options(options))
    if opening["job"] == "choices":
        from quire.jobs.child.choices import ContinuationEngine

        return ContinuationEngine(session, opening, board, files)
    from quire.jobs.child.generate import SessionEngine

    return SessionEngine(session, opening, board, files)


if __name__ == "__main__":
    sys.exit(main())
