"""A replica of an LLM: `python -m quire.replicas.child`. Requests come in, outputs go back."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from quire.errors import NotSupported
from quire.executor.plain_data import decode, encode
from quire.replicas.board import Board
from quire.replicas.child.driving import Driver, NumberedRequests
from quire.replicas.child.feed import Feed, Rows
from quire.replicas.child.serving import RowEngine, serve
from quire.replicas.child.tally import session_facts
from quire.replicas.streams import Send
from quire.replicas.wire import Message

if TYPE_CHECKING:
    from quire.outputs import RequestOutput
    from quire.session.session import Session


class RequestEngine:
    """Answers requests that another process made and checked."""

    def __init__(self, session: Session, board: Board) -> None:
        self._session = session
        self._driver = Driver(session, board)

    def facts(self) -> Message:
        """Facts for the process that makes the requests, with the decisions in the config."""
        config = self._session.model.config
        plain = {f.name: getattr(config, f.name) for f in fields(config)}
        chosen = {n: v for n, v in plain.items() if v is None or isinstance(v, int | float | str)}
        return {**session_facts(self._session), "config": chosen}

    def run(self, feed: Feed, send: Send) -> None:
        self._driver.run(feed, send, _asked, _result)

    def plan(self, rows: Rows) -> str:
        raise NotSupported("plans are made by one LLM without replicas.")


def _asked(rows: Rows) -> list[NumberedRequests]:
    return [[(row["row"], decode(row["request"])) for row in rows]]


def _result(row: int, output: RequestOutput) -> Message:
    written: Any = sum(len(answer.token_ids) for answer in output.outputs)
    return {"kind": "result", "row": row, "output": encode(output), "output_tokens": written}


def _made(opening: Message, board: Board) -> RowEngine:
    from quire.options import parse_options
    from quire.session.session import Session

    return RequestEngine(Session.open(opening["model"], parse_options(opening["options"])), board)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m quire.replicas.child")
    parser.add_argument("--board", type=int, required=True, help="the shared file's number")
    return serve(parser.parse_args().board, _made)


if __name__ == "__main__":
    sys.exit(main())
