"""Many at once: streams that all end well, and a queue whose memory stays small."""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import socket
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from quire.server.serve import Serving
from tests.server.serving import KEY, client, serving, until

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


def test_one_that_waits_takes_little_memory(tmp_path: Path) -> None:
    """What Python has for each: 25 KB with a route of Starlette's and a task more for each."""
    count = 200
    body = json.dumps({"model": "fake", "prompt": "a few words that wait", "max_tokens": 400})
    head = f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with serving(tmp_path, "fake:delay=1000", max_queue=2 * count) as server:
        address, held = server.socket.getsockname()[:2], list[socket.socket]()

        def fill(up_to: int) -> int:
            while len(held) < up_to:
                held.append(socket.create_connection(address))
                held[-1].sendall((head + body).encode())
            until(lambda: len(server.bridge._readings) == up_to)
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        tracemalloc.start()
        try:
            before = fill(20)
            each = (fill(20 + count) - before) / count
        finally:
            tracemalloc.stop()
            for one in held:
                one.close()
        until(lambda: not server.bridge._readings)  # those who left are given up
        assert each < 21_000


@pytest.mark.parametrize("streamed", [False, True])
def test_a_bug_is_answered_without_its_words(tmp_path: Path, streamed: bool) -> None:
    async def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a secret of the server")
        yield

    with serving(tmp_path) as server:
        server.bridge.generate = broken  # type: ignore[method-assign]
        for prompt in ("hello", ["one", "two"]):
            status, came = asyncio.run(ask(server, {"prompt": prompt, "stream": streamed}))
            assert status == 500 and b"internal_error" in came and b"secret" not in came
            assert b"x-request-id" in came
        with client(server) as http:  # which keeps its connections, unless it is told
            for _ in range(2):
                answer = http.post(TEXT, json={"model": "fake", "prompt": "hello"})
                assert answer.status_code == 500 and answer.headers["connection"] == "close"


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
