"""Rows of batches on their way to the engine and back: few at a time, and within a bound of
bytes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from quire.jobs.input.work import WorkRow
from quire.openai_api.outputs import Answer, Output
from quire.server.batch_dispatch import Dispatcher
from quire.server.bridge import Bridge
from quire.server.limits import AT_ONCE
from quire.server.services import Lane, Settings
from quire.server.wire import Message


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


def test_whoever_waits_for_an_answer_does_not_wait_behind_a_batch_that_ends(tmp_path: Path) -> None:
    """Where hundreds of rows end in one step, and one token came for a reader."""
    came: list[Lane] = []

    async def read(bridge: Bridge, lane: Lane) -> None:
        async for _ in bridge.generate({"params": {}}, lane=lane):
            came.append(lane)

    async def run() -> None:
        bridge = Bridge(Settings("fake", ("fake",), tmp_path))
        lanes: list[Lane] = [*["batch"] * 200, "interactive"]
        tasks = [asyncio.create_task(read(bridge, lane)) for lane in lanes]
        await asyncio.sleep(0)
        output = Output((Answer(0, "a", finish_reason="stop"),), True)
        bridge._take(Message("delta", rows=[(i + 1, output) for i in range(201)]))
        while "interactive" not in came:
            await asyncio.sleep(0)
        assert len(came) <= 4 * AT_ONCE
        async with asyncio.timeout(10):
            await asyncio.gather(*tasks)

    asyncio.run(run())
    assert len(came) == 201


def test_rows_of_a_batch_go_to_the_engine_together_and_once(tmp_path: Path) -> None:
    class Sent:
        def __init__(self) -> None:
            self.rows: list[list[int]] = []

        def send(self, message: Any) -> None:
            self.rows += [[msgspec.json.decode(row)["id"] for row in message.get("rows", ())]]

    async def run() -> None:
        bridge, sent = Bridge(Settings("fake", ("fake",), tmp_path)), Sent()
        bridge.state, bridge._life = "ready", sent  # type: ignore[assignment]

        async def read(lane: Lane) -> None:
            async for _ in bridge.generate({"params": {}}, lane=lane):
                pass

        lanes: list[Lane] = ["batch", "batch", "interactive", "batch"]
        tasks = [asyncio.create_task(read(lane)) for lane in lanes]
        await asyncio.sleep(0)
        bridge._take(Message("ready"))  # an engine that began meanwhile is told all of them
        await asyncio.sleep(0.01)
        assert sent.rows == [[3], [3], [1, 2, 4]]
        for task in tasks:
            task.cancel()

    asyncio.run(run())
