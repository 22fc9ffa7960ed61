"""The rows of a body, answered whole."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from quire.openai_api.asks import Asked, Row
from quire.openai_api.errors import ApiError, server_error
from quire.openai_api.outputs import Output
from quire.openai_api.pooling import PoolAsked
from quire.server.services import Lane, Services


async def whole_outputs(
    services: Services, asked: Asked | PoolAsked, *, lane: Lane, key_id: str
) -> list[Output]:
    """The finished output of each row. If one row fails, the others are given up."""
    try:
        return await _all(services, asked.rows, lane, key_id)
    except ApiError as error:
        raise error.named(asked.fields) from None


async def _all(services: Services, rows: tuple[Row, ...], lane: Lane, key_id: str) -> list[Output]:
    if len(rows) == 1:
        return [await whole_output(services, rows[0], lane, key_id)]
    # Not a TaskGroup: in Python 3.11 it loses a cancel that comes together with a failure.
    tasks = [asyncio.create_task(whole_output(services, row, lane, key_id)) for row in rows]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def whole_output(services: Services, row: Row, lane: Lane, key_id: str) -> Output:
    # Closed here, so that the row's place in the queue is free as soon as its answer is there.
    async with aclosing(services.engine.generate(row, lane=lane, key_id=key_id)) as outputs:
        async for output in outputs:
            if output.finished:
                return output
    raise server_error("the engine gave no answer", code="no_answer")
