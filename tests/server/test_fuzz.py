"""Bodies that nobody would send: whatever comes, no route fails on it, and the engine lives."""

from __future__ import annotations

import json
import random
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from quire.anthropic_api.messages import COUNTED
from quire.openai_api.fields import CHAT, COMPLETIONS, MESSAGES, RESPONSES, TABLE
from quire.server import batch_routes, health, tokens
from quire.server.serve import Serving
from tests.server.serving import HEAD, KEY, chat, client, serving
from tests.server.stored import chat_line, lines_of

COUNT = "/v1/messages/count_tokens"
BODIES = {**TABLE, COUNT: COUNTED}
OTHERS = ("/tokenize", "/detokenize")
KEYS = {"message", "type", "param", "code"}
GOOD: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "x"}]},
    COMPLETIONS: {"prompt": "x"},
    RESPONSES: {"input": "x"},
    MESSAGES: {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3},
    COUNT: {"messages": [{"role": "user", "content": "x"}]},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [1]},
}
BLOCKS = ("text", "image", "tool_use", "tool_result", "thinking", "document")
ROLES_AND_BLOCKS = [(role, kind) for role in ("user", "assistant", "system") for kind in BLOCKS]
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 3, 2**31, 2**63, -(2**63), 0.0, -0.5, 1e-320, 1e308),
    *("", "x", "auto", "none", "user", "\0", "é" * 40, "{", "(a", "../x", "\u2028", "a" * 3000),
    *([], [None], [[]], [0], [-1], ["x"], [{}], [[1]], {}, {"type": "x"}, {"x": None}),
    *({"type": "json_schema", "json_schema": {"schema": {"type": 5}}}, {"0": "x"}, {"x": {}}),
    [{"role": "user", "content": [{"type": "text", "text": 5}]}],
    [{"role": 5, "content": []}],
    [{"role": "tool", "content": None}, {"role": "assistant", "tool_calls": [{}]}],
    [{"type": "function", "function": {"name": "f", "parameters": {"$ref": "#/x"}}}],
    [{"type": "reasoning", "content": ["x"]}],
    [{"type": "function_call_output", "output": [{"type": "x"}]}],
    [{"name": "f", "input_schema": {"type": "object"}}],
    *([{"role": role, "content": [{"type": kind}]}] for role, kind in ROLES_AND_BLOCKS),
    *({"type": kind} for kind in ("any", "tool", "enabled", "disabled", "base64", "url")),
)
INNER = (
    *("type", "name", "role", "content", "text", "function", "schema", "format", "x", "source"),
    *("input", "id", "tool_use_id", "is_error", "thinking", "input_schema"),
)
NAMES = sorted({name for fields in TABLE.values() for name in fields})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("server"), "fake:rows=8") as made:
        yield made


def odd_body(rng: random.Random, path: str) -> Any:
    if rng.random() < 0.05:
        return rng.choice(ODD)
    names = list(BODIES.get(path, {})) or NAMES
    body: dict[str, Any] = {"model": "fake", **GOOD.get(path, {})}
    if path in (CHAT, COMPLETIONS):
        body["max_tokens"] = 3
    for _ in range(rng.randint(0, 4)):
        body[rng.choice(names if rng.random() < 0.9 else NAMES)] = _odd(rng, 0)
    return body


def _odd(rng: random.Random, depth: int) -> Any:
    kind = rng.random()
    if depth < 3 and kind < 0.1:
        return [_odd(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    if depth < 3 and kind < 0.25:
        return {rng.choice(INNER): _odd(rng, depth + 1) for _ in range(rng.randint(0, 3))}
    return rng.choice(ODD)


# The fake model's draws leave a grammar that could be compiled; every other failure is ours.
ALLOWED_500 = {"grammar_failed"}


def check_bodies(server: Serving, seed: int, count: int) -> None:
    rng = random.Random(seed)
    paths = [*BODIES, *OTHERS, MESSAGES, MESSAGES]  # whose bodies are the deepest
    lives = server.bridge.stats().restarts
    with client(server) as http:
        described = http.get("/openapi.json").json()["paths"]
        for _ in range(count):
            path = rng.choice(paths)
            body = odd_body(rng, path)
            response = http.post(path, json=body)
            assert str(response.status_code) in described[path]["post"]["responses"], (path, body)
            if response.status_code < 400:
                continue
            error = response.json()["error"]
            keys = {"message", "type"} if path.startswith(MESSAGES) else KEYS
            assert set(error) - {"details"} == keys and error["message"], (path, body)
            if response.status_code >= 500:
                # Where there is no code, the words are all that there is to know it by.
                by_words = path.startswith(MESSAGES) and "grammar" in error["message"]
                known = by_words or error.get("code") in ALLOWED_500
                assert known, (path, body, response.text)
        assert http.post(CHAT, json=chat(max_tokens=1)).status_code == 200
    assert server.bridge.stats().restarts == lives


def test_odd_bodies_are_refused_or_answered(server: Serving) -> None:
    check_bodies(server, 1, 250)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 10))
def test_many_odd_bodies(server: Serving, seed: int) -> None:
    check_bodies(server, seed, 3000)


# What belongs at the paths of what is stored; ids and parts are put in when a request is made.
FORMS = {"/v1/files": "file", "/v1/uploads/{upload_id}/parts": "data"}
FILES = (
    lines_of(chat_line(1, "x", max_tokens=2)),
    b"{",
    b"",
    lines_of({"custom_id": "a"}),
    b"\0\xff",
)
STORED: dict[str, dict[str, Any]] = {
    "/v1/batches": {"endpoint": CHAT, "completion_window": "24h", "metadata": {"a": "b"}},
    "/v1/uploads": {"filename": "x", "purpose": "batch", "bytes": 2, "mime_type": "text/plain"},
}


class Stranger:
    """Asks for whatever there is to be asked, with ids it was given, in any order."""

    def __init__(self, server: Serving, seed: int) -> None:
        self._rng = random.Random(seed)
        services = server.services
        stored = batch_routes.routes(services, server._stored)
        self._routes = [*health.routes(services), *tokens.routes(services), *stored]
        self.described: dict[str, Any] = {}
        self._known = ["x", "../x", "\0", "é", "file-", "a" * 300]

    def ask(self, http: httpx.Client) -> tuple[str, httpx.Response]:
        rng, route = self._rng, self._rng.choice(self._routes)
        methods = sorted(route.methods or ())
        if rng.random() < 0.1:
            methods = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
        path = re.sub("{[^}]+}", lambda _: quote(self._id(), safe=""), route.path)
        words = ("limit", "after", "order", "purpose", "x")
        query = {rng.choice(words): str(_odd(rng, 3)) for _ in range(rng.choice((0, 0, 1, 2)))}
        query |= {"after": self._id()} if rng.random() < 0.1 else {}
        method = rng.choice(methods)
        response = http.request(method, path, params=query, **self._payload(route.path))
        self._check(route.path_format, method.lower(), response)
        if method != "HEAD" and response.headers.get("content-type") == "application/json":
            read = response.json()
            self._known += [read["id"]] if isinstance(read, dict) and "id" in read else []
        return f"{method} {path} {query}", response

    def _check(self, path: str, method: str, response: httpx.Response) -> None:
        operation = self.described[path].get("get" if method == "head" else method)
        expected = operation["responses"] if operation else ("405",)
        # An odd id may make another path of it.
        if "nothing at this path" not in response.text:
            assert str(response.status_code) in expected, (method, path, response.text)

    def _id(self) -> str:
        return self._rng.choice(self._known[-12:] if self._rng.random() < 0.8 else self._known)

    def _payload(self, path: str) -> dict[str, Any]:
        rng = self._rng
        if path in FORMS and rng.random() < 0.8:
            name = FORMS[path] if rng.random() < 0.9 else "x"
            form = {"purpose": rng.choice(("batch", "batch", "user_data", "x"))}
            form |= {"expires_after[seconds]": str(_odd(rng, 3))} if rng.random() < 0.1 else {}
            return {"files": {name: ("n.jsonl", rng.choice(FILES))}, "data": form}
        body = {**STORED.get(path, {}), "input_file_id": self._id(), "part_ids": [self._id()]}
        if path in ("/v1/batches", "/v1/uploads"):
            del body["part_ids"]
        if path == "/v1/uploads":
            del body["input_file_id"]
        if rng.random() < 0.3:
            body[rng.choice([*body, "md5", "x"])] = _odd(rng, 0)
        return {"json": body} if rng.random() < 0.8 else {}


def check_routes(server: Serving, seed: int, count: int) -> None:
    stranger, seen = Stranger(server, seed), set[int]()
    with client(server) as http:
        stranger.described = http.get("/openapi.json").json()["paths"]
        for _ in range(count):
            asked, response = stranger.ask(http)
            seen.add(response.status_code)
            assert response.status_code < 500, (asked, response.text)
            if response.status_code >= 400 and not asked.startswith("HEAD"):
                keys = {"message", "type"} if f" {MESSAGES}" in asked else KEYS
                assert set(response.json()["error"]) - {"details"} == keys, asked
        assert http.post(CHAT, json=chat(max_tokens=1)).status_code == 200
    assert {200, 400, 404, 405} <= seen and not server.bridge.stats().restarts


def test_strangers_find_no_route_that_fails(server: Serving) -> None:
    check_routes(server, 1, 300)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 10))
def test_many_strangers_find_none(server: Serving, seed: int) -> None:
    check_routes(server, seed, 3000)


def test_bytes_that_are_no_request(server: Serving) -> None:
    rng = random.Random(3)
    for _ in range(60):
        data = bytes(rng.randrange(256) for _ in range(rng.randint(1, 200)))
        if rng.random() < 0.7:
            data = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n".encode() + data + b"\r\n\r\n"
        with socket.create_connection(server.socket.getsockname(), timeout=5) as made:
            made.sendall(data)
            made.shutdown(socket.SHUT_WR)
            with suppress(ConnectionResetError):
                assert b" 500 " not in made.recv(1 << 16)
    with client(server) as http:
        assert http.post(CHAT, json=chat(max_tokens=1)).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_who_ends_its_sending_with_its_request_reads_its_answer(
    server: Serving, stream: bool
) -> None:
    """As `nc -N` does. Whoever has left ends it too, and is not written for."""
    body = json.dumps(chat(max_tokens=20, ignore_eos=True, stream=stream)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\n{HEAD}Content-Length: {len(body)}\r\n\r\n".encode()
    first = f"GET /v1/models HTTP/1.1\r\n{HEAD}\r\n".encode()
    for data, answers in ((head + body, 1), (first + head + body, 2), (head + body[:-9], 0)):
        with socket.create_connection(server.socket.getsockname(), timeout=10) as made:
            made.sendall(data)
            made.shutdown(socket.SHUT_WR)
            came = b"".join(iter(lambda: made.recv(1 << 16), b""))
        assert came.count(b"HTTP/1.1 200 OK\r\n") == answers
        assert not answers or came.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n" if stream else b"}")


def slowest(http: httpx.Client, count: int) -> float:
    """Seconds of the slowest of so many answers, one after the other."""
    found = []
    for _ in range(count):
        began = time.monotonic()
        assert http.post(CHAT, json=chat(max_tokens=1)).status_code == 200
        found.append(time.monotonic() - began)
    return max(found)


@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=pytest.mark.long)])
def test_half_open_connections_cost_no_one_else_anything(server: Serving, count: int) -> None:
    half = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
    half += "Content-Type: application/json\r\nContent-Length: 4000\r\n\r\n{"
    made = [socket.create_connection(server.socket.getsockname()) for _ in range(count)]
    try:
        for i, each in enumerate(made):
            each.sendall((half if i % 2 else half[:40]).encode())
        with client(server) as http:
            assert slowest(http, 20) < 2.0  # of a busy machine: a hundredth of that is usual
    finally:
        for each in made:
            each.close()


def test_a_gigabyte_of_body_is_not_read(server: Serving) -> None:
    """It claims nothing, and sends until it is cut: long before a gigabyte is there."""
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
    head += "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    part = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
    sent = [0]

    def send() -> None:
        with socket.create_connection(server.socket.getsockname(), timeout=30) as made:
            made.sendall(head.encode())
            with suppress(OSError):
                for _ in range(1024):
                    made.sendall(part)
                    sent[0] += 1

    sending = threading.Thread(target=send)
    sending.start()
    with client(server) as http:
        assert slowest(http, 20) < 2.0
    sending.join(60)
    assert not sending.is_alive() and sent[0] < 64
