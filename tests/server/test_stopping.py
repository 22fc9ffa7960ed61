"""A server that is stopped ends, whatever its rows and its disk do at that moment."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from quire.openai_api.asks import read_body
from quire.openai_api.errors import ApiError
from quire.openai_api.fields import COMPLETIONS
from quire.server import batch_dispatch, batch_service
from quire.server.answering import whole_outputs
from quire.server.batch_job import BatchJob
from quire.server.keys import Keys
from quire.server.services import Services, Settings
from tests.jobs.driving import ENVIRONMENT, ROOT
from tests.server.stored import MODEL, FakeEngine, chats, serving


class AwayEngine(FakeEngine):
    """Takes no rows, as one whose server stops."""

    async def generate(self, row: dict[str, Any], **given: Any) -> AsyncIterator[Any]:
        self.asked.append("row")
        await asyncio.sleep(0)
        raise ApiError(503, "the server is stopping", code="unavailable")
        yield


@pytest.mark.parametrize("num_rows", [1, 2])
def test_a_cancel_is_not_lost_to_a_failing_row(tmp_path: Path, num_rows: int) -> None:
    """At each turn of the loop between the first row's failure and the end of the work."""

    async def cancelled_after(turns: int) -> bool:
        settings = Settings(model=MODEL, names=(MODEL,), data_dir=tmp_path)
        services = Services(AwayEngine(), settings, Keys())  # type: ignore[arg-type]
        asked = read_body(COMPLETIONS, {"prompt": ["x"] * num_rows})
        work = asyncio.create_task(whole_outputs(services, asked, lane="batch", key_id="local"))
        for _ in range(turns):
            await asyncio.sleep(0)
        was_asked = work.cancel()
        await asyncio.wait({work})
        assert work.cancelled() == was_asked
        return was_asked

    seen = [asyncio.run(cancelled_after(turns)) for turns in range(12)]
    assert seen[0] and not seen[-1]


def test_batches_stop_while_the_engine_takes_no_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_dispatch, "PAUSE", 0)

    async def stopped() -> None:
        engine = AwayEngine()
        async with serving(tmp_path, engine) as api:
            file = (await api.upload(chats(64))).json()["id"]
            await api.create(file)
            async with asyncio.timeout(10):
                while len(engine.asked) < 100:
                    await asyncio.sleep(0.001)
            async with asyncio.timeout(5):
                await api.service.stop()

    for _ in range(5):
        asyncio.run(stopped())


def test_a_batch_whose_files_do_not_close_is_stopped_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(job: BatchJob) -> None:
        close(job)
        raise OSError("the disk is gone")

    close = BatchJob.close
    monkeypatch.setattr(BatchJob, "close", fails)

    async def stopped() -> None:
        engine = FakeEngine()
        engine.open.clear()
        async with serving(tmp_path, engine) as api:
            created = await api.create((await api.upload(chats(9))).json()["id"])
            await api.until(created.json()["id"], "in_progress")
            async with asyncio.timeout(5):
                while not engine.asked:
                    await asyncio.sleep(0.001)
                await api.service.stop()

    asyncio.run(stopped())


def test_sweeping_goes_on_after_any_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_service, "SWEEP_SECONDS", 0)

    async def swept() -> None:
        num_sweeps = 0

        async def fails() -> None:
            nonlocal num_sweeps
            num_sweeps += 1
            raise RuntimeError("something else than the disk")

        async with serving(tmp_path) as api:
            monkeypatch.setattr(api.service, "sweep", fails)
            async with asyncio.timeout(5):
                while num_sweeps < 3:
                    await asyncio.sleep(0.001)

    asyncio.run(swept())


SERVE = """
import sys
from pathlib import Path
from quire.server.engine_life import COMMAND
from quire.server.keys import Keys
from quire.server.serve import Serving
from quire.server.services import Settings

command = (*COMMAND, "--session", "tests.server.fake_session:make")
settings = Settings("fake:delay=0.02", ("fake",), Path(sys.argv[1]), port=0, grace=20)
server = Serving(settings, Keys(), command=command)
server.run(lambda: print(server.address, flush=True))
"""


def test_nothing_that_comes_behind_a_signal_is_generated(tmp_path: Path) -> None:
    """Not even what comes with it; and what runs has its answer."""
    command = [sys.executable, "-c", SERVE, str(tmp_path)]
    with subprocess.Popen(
        command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        asked = {"model": "fake", "prompt": "x", "max_tokens": 50, "stream": True}
        path, body = "/v1/completions", json.dumps(asked)
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        whole = f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()
        host, port = address.removeprefix("http://").split(":")
        with ExitStack() as held, httpx.stream("POST", address + path, json=asked) as runs:
            late = [held.enter_context(socket.create_connection((host, port))) for _ in range(8)]
            for one in late:
                one.sendall(whole[:-1])
            events = runs.iter_lines()
            next(events)
            process.send_signal(signal.SIGTERM)
            for one in late:
                one.sendall(whole[-1:])
            told = [one.recv(1 << 16) for one in late]
            assert "data: [DONE]" in list(events)
        assert [one.split(b" ")[1] for one in told] == [b"503"] * len(late)
        assert process.wait(20) == 0
