"""The rows of a body, answered whole."""

from __future__ import annotations

import asyncio

from quire.openai_api.asks import Asked, Row
from quire.openai_api.errors import server_error
from quire.openai_api.outputs import Output
from quire.openai_api.pooling import PoolAsked
from quire.server.services import Lane, Services


async def whole_outputs(
    services: Services, asked: Asked | PoolAsked, *, lane: Lane, key_id: str
) -> list[Output]:
    """The finished output of each row. One that fails takes the others with it."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_whole(services, row, lane, key_id)) for row in asked.rows]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


async def _whole(services: Services, row: Row, lane: Lane, key_id: str) -> Output:
    asked = {name: value for name, value in row.items() if name != "stream"}
    async for output in services.engine.generate(asked, lane=lane, key_id=key_id):
        if output.finished:
            return output
    raise server_error("the engine gave no answer", code="no_answer")
