"""Rows of batches on their way to the engine: few at a time, and within a bound of bytes."""

from __future__ import annotations

import asyncio

import pytest

from quire.jobs.input.work import WorkRow
from quire.server.batch_dispatch import Dispatcher


class Rows:
    """A batch of so many rows, which end when they are let go."""

    def __init__(self, count: int, size: int) -> None:
        self._left = [WorkRow(i, str(i), "", {}, size=size) for i in range(count)]
        self.let_go = asyncio.Event()
        self.num_asked = self.num_answered = 0

    def take_row(self) -> WorkRow | None:
        return self._left.pop() if self._left else None

    async def answer(self, row: WorkRow) -> None:
        self.num_asked += 1
        await self.let_go.wait()
        self.num_answered += 1

    def blame(self, row: WorkRow) -> None:
        raise AssertionError("no row is to blame")


@pytest.mark.parametrize(("size", "at_once"), [(0, 96), (100 << 20, 3), (1 << 30, 1)])
def test_rows_in_flight_have_a_bound_of_bytes(size: int, at_once: int) -> None:
    async def run() -> None:
        dispatcher, rows = Dispatcher(), Rows(200, size)
        dispatcher.capacity = 16
        dispatcher.add(rows)
        running = asyncio.create_task(dispatcher.run())
        for _ in range(20):
            await asyncio.sleep(0)
        assert rows.num_asked == at_once
        rows.let_go.set()
        async with asyncio.timeout(5):
            while rows.num_answered < 200:
                await asyncio.sleep(0)
        running.cancel()

    asyncio.run(run())
