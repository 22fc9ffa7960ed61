"""A fake engine whose tokenizer panics at some texts, as one written in another language does: with
an exception that is no Exception. One text brings the process itself down to the memory killer's
door, which is no row's fault."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quire.jobs.child.choices import ContinuationEngine
from quire.jobs.child.generate import SessionEngine
from quire.replicas.board import Board
from quire.replicas.wire import Message
from tests.jobs import fake_engine


class PanicException(BaseException):
    """Named and derived as pyo3's."""


class Panicking:
    """The library behind a tokenizer, which panics at some texts."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def encode_batch_fast(self, texts: Sequence[str], **options: Any) -> Any:
        for text in texts:
            if "panic" in text:
                raise PanicException("called `Option::unwrap()` on a `None` value")
            if "raise" in text:
                raise RuntimeError("something that nobody foresaw")
            if "deep" in text:
                raise RecursionError("maximum recursion depth exceeded")
        return self._inner.encode_batch_fast(texts, **options)


def make(opening: Message, board: Board) -> SessionEngine | ContinuationEngine:
    engine = fake_engine.make(opening, board)
    tokenizer: Any = engine._session.model.tokenizer
    tokenizer.backend = Panicking(tokenizer.backend)
    return engine
