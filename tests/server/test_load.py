"""Many at once: streams that all end well, and a queue whose memory stays small."""

from __future__ import annotations

import asyncio
import json
import resource
from pathlib import Path
from typing import Any

import pytest

from quire.server.serve import Serving
from tests.server.serving import KEY, serving, until

TEXT = "/v1/completions"


async def ask(server: Serving, body: dict[str, Any]) -> tuple[int, bytes]:
    """The status and the rest of one request, over a connection of its own."""
    host, port = server.socket.getsockname()[:2]
    reader, writer = await asyncio.open_connection(host, port)
    data = json.dumps({"model": "fake", **body}).encode()
    head = f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
    head += f"Connection: close\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    writer.write(head.encode() + b"\r\n\r\n" + data)
    try:
        came = await reader.read(-1)
    finally:
        writer.close()
    return int(came.split(b" ", 2)[1]), came


async def many(server: Serving, count: int, **body: Any) -> list[tuple[int, bytes]]:
    rows = [{"prompt": f"number {i}", "temperature": 0, **body} for i in range(count)]
    return await asyncio.gather(*(ask(server, row) for row in rows))


def check_streams(folder: Path, count: int, tokens: int) -> None:
    with serving(folder, "fake:rows=256", max_queue=count) as server:
        answers = asyncio.run(many(server, count, max_tokens=tokens, stream=True))
        assert {status for status, _ in answers} == {200}
        assert all(b"data: [DONE]" in came for _, came in answers)
        assert all(came.count(b'"finish_reason":"length"') == 1 for _, came in answers)
        assert server.bridge.stats().rejected == 0 and not server.bridge._readings
        until(lambda: server.bridge.stats().running == 0)


def test_a_hundred_streams_at_once(tmp_path: Path) -> None:
    check_streams(tmp_path, 100, 8)


@pytest.mark.long
def test_five_hundred_and_twelve_streams_at_once(tmp_path: Path) -> None:
    check_streams(tmp_path, 512, 60)


def _resident() -> int:
    """Bytes of memory that this process, which is the server's too, has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@pytest.mark.long
def test_thousands_wait_in_little_memory(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Both ends of every connection are files of this process.
    count = min(10_000, (hard - 1000) // 200 * 100)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * count + 1000, hard))

    async def flood(server: Serving) -> int:
        tasks: list[asyncio.Future[Any]] = []
        async with asyncio.timeout(120):
            while len(tasks) < count:  # a few at a time: one processor is both ends of them
                row = {"prompt": f"{len(tasks)}", "max_tokens": 400, "ignore_eos": True}
                tasks += [asyncio.ensure_future(ask(server, row)) for _ in range(100)]
                while len(server.bridge._readings) < len(tasks):
                    await asyncio.sleep(0.01)
        held = _resident()
        status, _ = await ask(server, {"prompt": "one more", "max_tokens": 1})
        assert status == 429
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return held

    try:
        with serving(tmp_path, "fake:rows=4:delay=1", max_queue=count, grace=1) as server:
            before = _resident()
            held = asyncio.run(flood(server))
            until(lambda: not server.bridge._readings, 60)
        # Twice what a server alone needs: their readers are in this process too.
        assert held - before < 400 << 20, f"{(held - before) >> 20} MiB"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
