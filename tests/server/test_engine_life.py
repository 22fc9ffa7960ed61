"""What the server makes of its engine's life: crashes, full queues, readers that leave, the end."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from quire.server.engine_life import EngineLife
from quire.server.events import _Writing
from quire.server.protocol import BoundedProtocol
from quire.server.serve import Serving
from tests.server.serving import HEAD, chat, client, serving, until

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def text(prompt: str, **more: Any) -> dict[str, Any]:
    return {"model": "fake", "prompt": prompt, "temperature": 0, **more}


def kill_engine(server: Serving) -> None:
    life = server.bridge._life
    assert life is not None
    os.kill(life.pid, signal.SIGKILL)


# As long as the model can write: with a tenth of a second a step longer than any `until`.
LONG: dict[str, Any] = {"max_tokens": 2000, "ignore_eos": True}


def asking(server: Serving, path: str, body: dict[str, Any]) -> socket.socket:
    """A connection whose answer nobody reads; to close it is to leave."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\n{HEAD}Content-Type: application/json\r\n"
    made = socket.create_connection(server.socket.getsockname())
    made.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return made


def num_steps(http: httpx.Client) -> float:
    """How many steps /metrics has counted."""
    name = "quire:iteration_tokens_total_count"
    found = [line for line in http.get("/metrics").text.splitlines() if line.startswith(name)]
    return float(found[0].split()[-1]) if found else 0.0


def test_a_crash_costs_streams_an_error_and_others_nothing(tmp_path: Path) -> None:
    with serving(tmp_path, "fake:rows=4:delay=0.02") as server, client(server) as http:
        expected = http.post(TEXT, json=text("calm", max_tokens=20)).json()["choices"]
        until(lambda: num_steps(http) >= 20)
        before = num_steps(http)
        with ThreadPoolExecutor(4) as pool:
            with http.stream("POST", CHAT, json=chat(max_tokens=1000, stream=True)) as response:
                lines = response.iter_lines()
                next(lines)
                whole = pool.submit(http.post, TEXT, json=text("calm", max_tokens=20))
                # It takes half a second: whoever looks late may find that it has ended.
                until(lambda: len(server.bridge._readings) == 2 or whole.done())
                kill_engine(server)
                rest = [line for line in lines if line]
            assert whole.result().json()["choices"] == expected  # asked again, unnoticed
        told = json.loads(rest[-1].removeprefix("data: "))
        assert told["error"]["code"] == "engine_crash" and "data: [DONE]" not in rest
        until(lambda: http.get("/health").status_code == 200)
        assert server.bridge.stats().restarts == 1
        assert num_steps(http) >= before  # a counter does not fall with the engine that counted


def test_a_row_that_kills_engines_is_answered_with_an_error(tmp_path: Path) -> None:
    with serving(tmp_path, "fake:rows=4") as server, client(server) as http:
        response = http.post(TEXT, json=text("<crash>", max_tokens=5))
        assert response.status_code == 500
        assert response.json()["error"]["code"] == "engine_crash"
        assert response.headers["x-should-retry"] == "false"
        assert http.post(TEXT, json=text("calm", max_tokens=5)).status_code == 200
        nan = http.post(TEXT, json=text("<nan>", max_tokens=5))
        assert nan.status_code == 500 and nan.json()["error"]["code"] == "nan_logits"


def test_too_much_at_once_is_429_and_the_next_finds_room(tmp_path: Path) -> None:
    with serving(tmp_path, "fake:rows=2:delay=0.1", max_queue=4) as server, client(server) as http:
        refused = http.post(TEXT, json=text("a", max_tokens=2, temperature=1, n=10))
        assert refused.status_code == 200  # an idle server takes any that is allowed at all
        with ExitStack() as held:
            for i in range(4):  # two run and two wait, until they are left
                held.enter_context(asking(server, TEXT, text(f"{i}", **LONG)))
            until(lambda: len(server.bridge._readings) == 4)
            answers = [http.post(TEXT, json=text("late")) for _ in range(8)]
        assert [each.status_code for each in answers] == [429] * 8
        assert all(1 <= int(each.headers["retry-after"]) <= 60 for each in answers)
        assert answers[0].json()["error"]["code"] == "rate_limit_exceeded"
        until(lambda: not server.bridge._readings)
        assert http.post(TEXT, json=text("a", max_tokens=2)).status_code == 200
        assert server.bridge.stats().rejected == 8


def test_a_client_that_leaves_gives_its_rows_up(tmp_path: Path) -> None:
    with serving(tmp_path, "fake:rows=4:delay=0.1") as server:
        for stream in (False, True):
            with asking(server, CHAT, chat(n=2, stream=stream, **LONG)):
                until(lambda: server.bridge.stats().running == 2)
            until(lambda: not server.bridge._readings)
            with client(server) as http:  # its two rows are free again
                assert http.post(CHAT, json=chat(n=4, max_tokens=2)).status_code == 200
            until(lambda: server.bridge.stats().running == 0)


def test_what_was_written_for_a_client_that_left_is_counted(tmp_path: Path) -> None:
    with serving(tmp_path, "fake:delay=0.01") as server, client(server) as http:
        asked = chat(stream=True, max_tokens=2000, ignore_eos=True)
        with http.stream("POST", CHAT, json=asked) as answer:
            lines = answer.iter_lines()
            for _ in range(8):
                next(lines)
        until(lambda: not server.bridge._readings)
        counted = dict(line.rsplit(" ", 1) for line in http.get("/metrics").text.splitlines())
        for name in ("prompt_tokens", "generation_tokens"):
            assert float(counted[f'quire:{name}_total{{engine="0",model_name="fake"}}']) > 1
        ended = 'engine="0",finished_reason="abort",model_name="fake"'
        assert counted[f"quire:request_success_total{{{ended}}}"] == "1.0"
        told = http.get("/quire/status").json()
        assert told["prompt_tokens"] > 1 and told["output_tokens"] > 1


def test_answers_before_a_request_that_is_refused_are_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection is over by then; whoever sends such fills no log."""
    body = json.dumps(chat(max_tokens=5)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\n{HEAD}Content-Length: {len(body)}\r\n\r\n".encode()
    next_one = f"GET /v1/models HTTP/1.1\r\n{HEAD}\r\n".encode()
    with (
        serving(tmp_path, "fake:delay=0.01") as server,
        socket.create_connection(server.socket.getsockname(), timeout=10) as made,
    ):
        made.sendall(head + body + next_one + b"nonsense\r\n\r\n")
        came = b"".join(iter(lambda: made.recv(1 << 16), b""))
        until(lambda: not server.bridge._readings)
        time.sleep(0.1)  # the answer is made after that
    assert came.startswith(b"HTTP/1.1 400 ") and came.count(b"HTTP/1.1 ") == 1
    assert not [line for line in caplog.messages if "Exception" in line]


def test_streams_that_end_or_are_left_leave_nothing_to_the_collector(tmp_path: Path) -> None:
    """It seldom looks at what is old: ten thousand streams would hold a hundred megabytes."""
    kinds = (BoundedProtocol, RequestResponseCycle, _Writing)

    def num_left() -> int:
        return sum(type(one) in kinds for one in gc.get_objects())

    with serving(tmp_path, "fake:delay=0.01") as server:
        gc.collect()
        gc.disable()
        try:
            for most, is_left in ((3, False), (2000, True)):
                with client(server) as http:
                    asked = chat(stream=True, max_tokens=most, ignore_eos=True)
                    with http.stream("POST", CHAT, json=asked) as answer:
                        lines = answer.iter_lines()
                        assert next(lines).startswith("data: ")
                        if not is_left:
                            assert [*lines][-2] == "data: [DONE]"
                until(lambda: num_left() == 0)
        finally:
            gc.enable()


def test_what_outlives_the_grace_is_told(tmp_path: Path) -> None:
    model = "fake:rows=4:delay=0.02"
    with (
        serving(tmp_path, model, grace=0.3) as server,
        ThreadPoolExecutor(2) as pool,
        client(server) as http,
    ):
        asked = text("long", max_tokens=400, ignore_eos=True)
        whole = pool.submit(http.post, TEXT, json=asked)
        stream = pool.submit(http.post, TEXT, json={**asked, "stream": True})
        until(lambda: len(server.bridge._readings) == 2)
        server.end()
        told = [line for line in stream.result().text.split("\n") if line][-1]
        assert json.loads(told.removeprefix("data: "))["error"]["code"] == "unavailable"
        assert whole.result().status_code == 503


def test_the_end_lets_what_runs_finish(tmp_path: Path) -> None:
    answers: list[httpx.Response] = []
    with serving(tmp_path, "fake:rows=4:delay=0.05") as server:
        http = client(server)

        def ask() -> None:
            answers.append(http.post(TEXT, json=text("calm", max_tokens=60)))

        asking = threading.Thread(target=ask)
        asking.start()
        until(lambda: bool(server.bridge._readings))
        server.end()
        until(lambda: server.bridge.state == "draining")
        with client(server) as other:
            late = other.post(TEXT, json=text("late", max_tokens=2))
            assert late.status_code == 503 and late.json()["error"]["code"] == "unavailable"
            assert other.get("/health").status_code == 503
            assert other.get("/v1/models").status_code == 200
        asking.join(20)
        http.close()
    [answer] = answers
    assert answer.json()["usage"]["completion_tokens"] == 60


@pytest.mark.long
def test_fifty_kills_of_the_engine_leave_nobody_waiting(tmp_path: Path) -> None:
    """Every request ends with its answer or with an error, whenever the engine dies."""
    rng = random.Random(7)
    with serving(tmp_path, "fake:rows=8:delay=0.005") as server, client(server) as http:
        http.timeout = httpx.Timeout(120)  # of several starts, on a machine that has others to run

        def ask(number: int) -> str:
            body = text(f"{number}", max_tokens=rng.randint(5, 80), stream=number % 2 == 0)
            with http.stream("POST", TEXT, json=body) as response:
                response.read()
                came = response.text
            if response.status_code != 200 or number % 2:
                return str(response.status_code)
            return "200" if "data: [DONE]" in came else "engine_crash" * ("error" in came)

        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(ask, number) for number in range(2000)]
            for kill in range(50):
                until(lambda: server.bridge.state == "ready", 60)
                time.sleep(rng.uniform(0.0, 0.5))
                kill_engine(server)
                until(lambda kill=kill: server.bridge.stats().restarts > kill, 60)
            ends = [each.result(120) for each in asked]
        assert set(ends) <= {"200", "500", "engine_crash"} and ends.count("200") > 1000
        assert not server.bridge._readings


SAYS = """
print("ready to serve")
print('hello{"kind":"ready"}')
print("no message")
print('{"kind":"metrics"}')
"""


def test_words_before_the_first_message_are_kept_and_later_ones_end_it() -> None:
    async def kinds() -> tuple[list[str], str]:
        life = await EngineLife.begin({}, command=[sys.executable, "-c", SAYS], hear=print)
        found = [message.kind async for message in life.messages()]
        await life.end()
        return found, life.stderr_tail

    assert asyncio.run(kinds()) == (["ready"], "ready to serve\nhello")
