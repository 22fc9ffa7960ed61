"""What batches need of an engine: one row answered, or the reason why not.

The server's engine and its translator stand behind this; tests put something smaller there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from quire.errors import QuireError
from quire.replicas.suspects import Fall


class EngineCrashed(QuireError):
    """The engine's process ended while it held the row; it may be that row's fault."""

    def __init__(self, message: str, fall: Fall) -> None:
        super().__init__(message)
        self.fall = fall


class EngineUnavailable(QuireError):
    """No engine takes rows now (it loads, restarts, or the server ends); ask again later."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What answers: a batch goes on only with the model and the arithmetic it began with.

    `model_files` and `tokenizer_files` are stamps as an engine's first message has them.
    """

    model: str
    capacity: int  # rows that run at once
    model_files: tuple[Mapping[str, Any], ...] = ()
    tokenizer_files: tuple[Mapping[str, Any], ...] = ()
    arithmetic: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RowAsked:
    """One line of a batch. The answer is a function of these fields alone, its ids included, so
    that a row that is computed again after a kill gives the same bytes."""

    endpoint: str
    body: Mapping[str, Any]
    key_id: str
    response_id: str
    created: int
    seed: int  # for a body that draws and names none


@dataclass(frozen=True, slots=True)
class RowAnswered:
    """An answer: the response's body, and what the journal keeps beside it."""

    body: Mapping[str, Any]
    outputs: tuple[str, ...]
    finish_reasons: tuple[str, ...]
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    # Seconds from the queue to the device, to the first token, to the end; for the report.
    timings: tuple[float | None, ...] = ()


class RowEngine(Protocol):
    async def facts(self) -> EngineFacts:
        """Waits until there is an engine that can answer."""
        ...

    async def answer(self, row: RowAsked) -> RowAnswered:
        """In the lane of batches. ApiError for a row that is refused, EngineCrashed,
        EngineUnavailable; a caller that is cancelled gives the row up."""
        ...
