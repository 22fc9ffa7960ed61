"""Rows of batches on their way to the engine and back: few at a time, and within a bound of
bytes."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from quire.jobs.input.work import WorkRow
from quire.openai_api.errors import ApiError
from quire.openai_api.outputs import Answer, Output
from quire.server.batch_dispatch import Dispatcher
from quire.server.bridge import Bridge
from quire.server.limits import AT_ONCE
from quire.server.queueing import Queueing
from quire.server.services import Lane, Settings
from quire.server.wire import Message


class Rows:
    """A batch of so many rows, which end when they are let go."""

    def __init__(self, count: int, size: int = 0, key_id: str = "a") -> None:
        self.key_id = key_id
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


def test_a_key_with_many_batches_leaves_others_as_much_as_it_has() -> None:
    async def run() -> None:
        dispatcher, mine = Dispatcher(), Rows(200, key_id="b")
        others = [Rows(200) for _ in range(3)]
        for rows in (*others, mine):
            dispatcher.add(rows)
        running = asyncio.create_task(dispatcher.run())
        for _ in range(20):
            await asyncio.sleep(0)
        assert mine.num_asked == 32 and sum(rows.num_asked for rows in others) == 32
        assert {rows.num_asked for rows in others} == {10, 11}
        for rows in (*others, mine):
            rows.let_go.set()
        async with asyncio.timeout(5):
            while sum(rows.num_answered for rows in (*others, mine)) < 800 or dispatcher._tasks:
                await asyncio.sleep(0)
        assert not dispatcher._by_key.total()
        running.cancel()

    asyncio.run(run())


def test_nobody_is_refused_for_what_others_sent() -> None:
    """Of 8 slots one key has all; another gets its half beside them, and a third its third."""
    queueing = Queueing(8, 1000)
    short: dict[str, Any] = {"params": {}}

    def num_taken(key_id: str, held: ExitStack, row: Any = short) -> int:
        for number in range(20):
            try:
                held.enter_context(queueing.slot(row, "interactive", 1, key_id))
            except ApiError as refused:
                assert refused.status == 429
                return number
        return 20

    with ExitStack() as held:
        assert [num_taken(key_id, held) for key_id in "abca"] == [8, 4, 2, 0]
    with ExitStack() as held:
        assert num_taken("a", held) == 8, "nothing is left of what others had"
    long = {"params": {}, "prompt": "x" * 900}
    with ExitStack() as held:
        assert [num_taken(key_id, held, long) for key_id in "ab"] == [1, 1]
        assert queueing.totals()["rejected"] == 7


def test_requests_in_no_hurry_have_as_many_slots_as_others_and_take_none_of_theirs() -> None:
    """A key could send any number with `service_tier: flex`; rows of batches wait elsewhere."""
    queueing, row = Queueing(2, 1000), dict[str, Any](params={})
    lanes: tuple[Lane, ...] = ("batch", "interactive")
    with ExitStack() as held:
        for lane in lanes:
            for _ in range(2):
                held.enter_context(queueing.slot(row, lane, 1, "a"))
            with pytest.raises(ApiError) as refused:
                held.enter_context(queueing.slot(row, lane, 1, "a"))
            assert refused.value.status == 429
        held.enter_context(queueing.slot({**row, "once": True}, "batch", 1, "a"))


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
            rows = [msgspec.json.decode(row) for row in message.get("rows", ())]
            self.rows += [[row["id"] for row in rows]]
            self.tenants = [row["tenant"] for row in rows]

    async def run() -> None:
        bridge, sent = Bridge(Settings("fake", ("fake",), tmp_path)), Sent()
        bridge.state, bridge._life = "ready", sent  # type: ignore[assignment]

        async def read(lane: Lane) -> None:
            async for _ in bridge.generate({"params": {}}, lane=lane, key_id="mine"):
                pass

        lanes: list[Lane] = ["batch", "batch", "interactive", "batch"]
        tasks = [asyncio.create_task(read(lane)) for lane in lanes]
        await asyncio.sleep(0)
        bridge._take(Message("ready"))  # an engine that began meanwhile is told all of them
        await asyncio.sleep(0.01)
        assert sent.rows == [[3], [3], [1, 2, 4]]
        assert sent.tenants == ["mine"] * 3
        for task in tasks:
            task.cancel()

    asyncio.run(run())
