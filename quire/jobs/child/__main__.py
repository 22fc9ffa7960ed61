"""Start the engine, say that it is ready, answer runs until the supervisor closes."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from importlib import import_module

from quire.replicas.board import Board
from quire.replicas.child.serving import RowEngine, serve
from quire.replicas.wire import Message


def main() -> int:
    arguments = _arguments()
    return serve(arguments.board, partial(_made, arguments.engine))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m quire.jobs.child")
    parser.add_argument("--board", type=int, required=True, help="the shared file's number")
    # Tests put an engine without a model here; nothing in quire passes it.
    parser.add_argument("--engine", help="MODULE:FACTORY that makes the engine")
    return parser.parse_args()


def _made(factory: str | None, opening: Message, board: Board) -> RowEngine:
    if factory is not None:
        module, name = factory.split(":")
        made: RowEngine = getattr(import_module(module), name)(opening, board)
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
    if opening["job"] == "embed":
        from quire.jobs.child.embed import EmbeddingEngine

        return EmbeddingEngine(session, opening, board, files)
    if opening["job"] == "transcribe":
        from quire.jobs.child.transcribe import TranscriptEngine

        return TranscriptEngine(session, opening, board, files)
    from quire.jobs.child.generate import SessionEngine

    return SessionEngine(session, opening, board, files)


if __name__ == "__main__":
    sys.exit(main())
