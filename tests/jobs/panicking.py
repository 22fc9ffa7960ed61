"""A fake engine whose tokenizer panics at some texts, as one written in another language does: with
an exception that is no Exception. One text brings the process itself down to the memory killer's
door, which is no row's fault."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quire.jobs.board import Board
from quire.jobs.child.choices import ContinuationEngine
from quire.jobs.child.generate import SessionEngine
from quire.jobs.wire import Message
from tests.jobs import fake_engine


class PanicException(BaseException):
    """Named and derived as pyo3's."""


def make(opening: Message, board: Board) -> SessionEngine | ContinuationEngine:
    engine = fake_engine.make(opening, board)
    tokenizer: Any = engine._session.model.tokenizer
    encode_batch = tokenizer.encode_batch

    def panicking(texts: Sequence[str], add_special_tokens: bool = True) -> Any:
        for text in texts:
            if "panic" in text:
                raise PanicException("called `Option::unwrap()` on a `None` value")
            if "raise" in text:
                raise RuntimeError("something that nobody foresaw")
            if "deep" in text:
                raise RecursionError("maximum recursion depth exceeded")
        return encode_batch(texts, add_special_tokens)

    tokenizer.encode_batch = panicking
    return engine
