"""Start the engine, report that it is ready, and answer rows until the server is gone."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import traceback
from functools import partial
from importlib import import_module

from quire.errors import EngineError, QuireError
from quire.replicas.board import Board, Phase
from quire.replicas.child.process import exit_code, private
from quire.replicas.streams import Inbox
from quire.replicas.wire import Message
from quire.server.child.adapters import ServedAdapters
from quire.server.child.serving import TELL_SECONDS, ServingEngine
from quire.server.child.writer import Writer
from quire.session.collector import lasts_from_now_on, rare_full_collections
from quire.session.session import Session

# Python's switch interval: while other threads prepare rows, the engine's thread may wait so long
# at each of its many calls into kernels. Python's default is five times as long.
SWITCH_SECONDS = 0.001


def main() -> int:
    arguments = _arguments()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server decides what a Ctrl-C means
    sys.setswitchinterval(SWITCH_SECONDS)
    threading.excepthook = _end_with_it
    board, inbox, writer = Board(arguments.board), Inbox(private(0)), Writer(private(1))
    opening = inbox.get()
    if opening is None:
        return 2
    serve = partial(_serve, opening, arguments.session, inbox, board, writer)
    code = exit_code(serve, writer.send)
    writer.flush()
    return code


def _end_with_it(failed: threading.ExceptHookArgs) -> None:
    """End the process if one of its threads fails, since others would wait for it for ever."""
    threading.__excepthook__(failed)
    os._exit(1)


def _serve(
    opening: Message, factory: str | None, inbox: Inbox, board: Board, writer: Writer
) -> None:
    board.move(Phase.LOADING)
    session, files = _opened(opening, factory)
    session.prepare_grammars()
    session.prepare_media()
    given = (opening[name] for name in ("names", "lora", "loaded"))
    engine = ServingEngine(session, board, writer, ServedAdapters(session, *given))
    board.move(Phase.IDLE)
    writer.send({"kind": "ready", "facts": {**engine.facts(), **files}})
    lasts_from_now_on()
    with rare_full_collections():
        while engine.failure is None:
            message = inbox.get(TELL_SECONDS)
            if message is not None:
                engine.take(message)
            engine.tell()
    failure = engine.failure
    if not isinstance(failure, QuireError):
        traceback.print_tb(failure.__traceback__)  # without the message, which may quote a row
        raise EngineError(f"the engine failed: {type(failure).__name__}") from failure
    raise failure


def _opened(opening: Message, factory: str | None) -> tuple[Session, Message]:
    model, options = opening["model"], dict(opening["options"])
    if factory is not None:
        module, name = factory.split(":")
        session: Session = getattr(import_module(module), name)(model, options)
        return session, {}
    from quire.jobs.child.files import files_of
    from quire.options import parse_options

    files = files_of(model, options)
    return Session.open(model, parse_options(options)), files


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m quire.server.child")
    parser.add_argument("--board", type=int, required=True, help="the shared file's number")
    # Tests put a session without a model here; nothing in quire passes it.
    parser.add_argument("--session", help="MODULE:FACTORY that makes the session")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
