"""The engine for batches: answers one line, or says why it cannot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from quire.errors import QuireError
from quire.openai_api.asks import Asked
from quire.openai_api.errors import ApiError, bad
from quire.openai_api.fields import EMBEDDINGS
from quire.openai_api.outputs import Answer, Output
from quire.openai_api.pooling import PoolAsked, pooling_body, read_pooling_body
from quire.server.answering import whole_outputs
from quire.server.services import Services
from quire.server.text_bodies import read_text_body

_LATER = (429, 503)  # the queue is full, or no engine runs


class EngineUnavailable(QuireError):
    """No engine takes rows now (it loads, restarts, or the server ends); ask again later."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """The model and its arithmetic: a batch continues only with those it began with.

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
    name: str  # unique among the rows of all batches
    created: int
    seed: int  # for a body that samples and has no seed of its own


@dataclass(frozen=True, slots=True)
class RowAnswered:
    """An answer: the response's body, and what the journal keeps beside it."""

    body: Mapping[str, Any]
    outputs: tuple[str, ...]
    finish_reasons: tuple[str, ...]
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    # Seconds from the queue to the device, to the first token, to the end; for the report.
    timings: tuple[float | None, ...]


class BatchEngine:
    """The engine of a server, in the lane of batches."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def facts(self) -> EngineFacts:
        """Waits until there is an engine that can answer."""
        engine = self._services.engine
        await engine.ready()
        facts = engine.facts
        return EngineFacts(
            model=self._services.settings.model,
            capacity=engine.capacity,
            model_files=tuple(facts.get("model_files", ())),
            tokenizer_files=tuple(facts.get("tokenizer_files", ())),
            arithmetic=facts.get("arithmetic", {}),
        )

    async def answer(self, row: RowAsked) -> RowAnswered:
        """ApiError for a row that is refused, EngineDied, EngineUnavailable; a caller that is
        cancelled gives the row up."""
        if row.endpoint == EMBEDDINGS:
            return await self._embedded(row)
        named: Any = {"number": row.name, "created": row.created}
        read = read_text_body(self._services, row.endpoint, row.body, **named, in_batch=True)
        if read.asked.stream:
            raise bad("a line of a batch is not streamed", param="stream")
        for each in read.asked.rows:
            # The tokens drawn depend on the line only, however often it is computed.
            if each["params"].get("seed") is None:
                each["params"] = {**each["params"], "seed": row.seed}
        outputs = await self._outputs(read.asked, row.key_id)
        # The number of cached tokens depends on earlier requests, so a line that is computed again
        # would have another one. The usage of the whole batch has the sum.
        shown = [replace(output, cached_tokens=0) for output in outputs]
        return _answered(read.whole(shown), outputs)

    async def _embedded(self, row: RowAsked) -> RowAnswered:
        engine, names = self._services.engine, self._services.names
        asked = read_pooling_body(row.endpoint, row.body, names, engine.facts.get("tasks", ()))
        outputs = await self._outputs(asked, row.key_id)
        about: Any = {"id": f"embd-{row.name}", "created": row.created}
        return _answered(
            pooling_body(asked, outputs, model=asked.model or names[0], **about), outputs
        )

    async def _outputs(self, asked: Asked | PoolAsked, key_id: str) -> list[Output]:
        for each in asked.rows:
            each["once"] = True  # after a death of the engine the dispatcher tries it again
        try:
            return await whole_outputs(self._services, asked, lane="batch", key_id=key_id)
        except ApiError as error:
            if error.status in _LATER:
                raise EngineUnavailable(error.message) from None
            raise


def _answered(body: Mapping[str, Any], outputs: list[Output]) -> RowAnswered:
    """An answer of numbers has no text; the journal keeps an empty text that ended normally."""
    answers = [answer for output in outputs for answer in output.answers or (Answer(0, ""),)]
    return RowAnswered(
        body=body,
        outputs=tuple(answer.text for answer in answers),
        finish_reasons=tuple(answer.finish_reason or "stop" for answer in answers),
        prompt_tokens=sum(output.prompt_tokens for output in outputs),
        output_tokens=sum(output.output_tokens for output in outputs),
        cached_tokens=sum(output.cached_tokens for output in outputs),
        reasoning_tokens=sum(output.reasoning_tokens for output in outputs),
        timings=outputs[0].timings,
    )
