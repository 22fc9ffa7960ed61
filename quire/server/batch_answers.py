"""Rows of batches before the server's own engine: the translator on both sides of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from quire.anthropic_api.answers import message_body
from quire.anthropic_api.messages import read_message
from quire.openai_api.asks import Asked, read_body
from quire.openai_api.bodies import response_body
from quire.openai_api.errors import ApiError, bad
from quire.openai_api.fields import EMBEDDINGS, MESSAGES, RESPONSES
from quire.openai_api.outputs import Answer, Output
from quire.openai_api.pooling import PoolAsked, pooling_body, read_pooling_body
from quire.openai_api.responses import About, read_response, response_object
from quire.server.answering import whole_outputs
from quire.server.batch_engine import (
    EngineCrashed,
    EngineFacts,
    EngineUnavailable,
    RowAnswered,
    RowAsked,
)
from quire.server.engine_fell import EngineFell
from quire.server.services import Services

_LATER = (429, 503)  # the queue is full, or no engine runs


class ServerRowEngine:
    """The engine of a server, in the lane of batches."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def facts(self) -> EngineFacts:
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
        if row.endpoint == EMBEDDINGS:
            return await self._embedded(row)
        names = self._services.names
        given: dict[str, Any] = {}
        if row.endpoint == RESPONSES:
            asked, given = read_response(row.body, names)
        elif row.endpoint == MESSAGES:
            bounds = bool(self._services.engine.facts.get("bounds_thoughts"))
            asked = read_message(row.body, names, bounds_thoughts=bounds)
            asked = dataclasses.replace(asked, is_batch=True)
        else:
            asked = read_body(row.endpoint, row.body, names)
        if asked.stream:
            raise bad("a line of a batch is not streamed", param="stream")
        for each in asked.rows:
            # What is drawn is a function of the line, however often it is computed.
            if each["params"].get("seed") is None:
                each["params"] = {**each["params"], "seed": row.seed}
        outputs = await self._outputs(asked, row.key_id)
        # How much of a prompt came from the cache depends on what ran before: a line that is
        # computed again would differ. The batch's own usage has the sum.
        shown = [replace(output, cached_tokens=0) for output in outputs]
        model = asked.model or names[0]
        body: Mapping[str, Any]
        if row.endpoint == RESPONSES:
            number = row.response_id.removeprefix("resp_")
            body = response_object(asked, shown[0], About(number, row.created, model, given))
        elif row.endpoint == MESSAGES:
            body = message_body(asked, shown[0], id=row.response_id, model=model)
        else:
            body = response_body(asked, shown, id=row.response_id, created=row.created, model=model)
        return _answered(body, outputs)

    async def _embedded(self, row: RowAsked) -> RowAnswered:
        engine, names = self._services.engine, self._services.names
        asked = read_pooling_body(row.endpoint, row.body, names, engine.facts.get("tasks", ()))
        outputs = await self._outputs(asked, row.key_id)
        about: Any = {"id": row.response_id, "created": row.created}
        return _answered(
            pooling_body(asked, outputs, model=asked.model or names[0], **about), outputs
        )

    async def _outputs(self, asked: Asked | PoolAsked, key_id: str) -> list[Output]:
        for each in asked.rows:
            each["once"] = True  # when the engine falls, the rows it held are searched
        try:
            return await whole_outputs(self._services, asked, lane="batch", key_id=key_id)
        except EngineFell as fell:
            raise EngineCrashed(fell.message, fell.fall) from None
        except ApiError as error:
            if error.status in _LATER:
                raise EngineUnavailable(error.message) from None
            raise


def _answered(body: Mapping[str, Any], outputs: list[Output]) -> RowAnswered:
    """An answer of numbers has no text: to the journal it is an empty one that ended."""
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
