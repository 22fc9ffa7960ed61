"""The abuse cases that need no files: each gets its status, and costs nobody else anything."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest

from quire.openai_api.errors import ApiError
from quire.server import limits
from quire.server.reading import parse_json
from quire.server.serve import Serving
from tests.server.serving import HEAD, KEY, chat, client, raw, serving, until

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("server"), "fake:rows=8") as made:
        yield made


@pytest.fixture
def http(server: Serving) -> Iterator[httpx.Client]:
    with client(server) as made:
        yield made


@pytest.fixture(autouse=True)
def still_answers(server: Serving) -> Iterator[None]:
    """Whatever a test did, the next caller is answered."""
    yield
    with client(server) as made:
        assert made.post(CHAT, json=chat(max_tokens=1)).status_code == 200


def refused(response: httpx.Response, status: int, code: str | None = None) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"] and "Traceback" not in error["message"]
    if code is not None:
        assert error["code"] == code
    return error


@pytest.mark.parametrize("path", ["/v1/models", "/version", "/metrics", "/v1/files", "/nowhere"])
@pytest.mark.parametrize("key", ["", "sk-wrong", KEY + "x", KEY[:-1]])
def test_1_nothing_without_a_key(server: Serving, path: str, key: str) -> None:
    with client(server, key) as made:
        refused(made.get(path), 401, "invalid_api_key")
        assert made.get("/health").status_code == made.get("/live").status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "localhost.evil.example:80"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"host": "evil.example", "origin": "http://evil.example"},
    ],
)
def test_2_foreign_hosts_and_origins(http: httpx.Client, headers: dict[str, str]) -> None:
    refused(http.get("/v1/models", headers=headers), 403)


@pytest.mark.parametrize("own", ["localhost", "localhost:80", "127.0.0.1:80", "[::1]:80"])
def test_2_a_host_hides_no_second_one(server: Serving, own: str) -> None:
    for hosts in ([own, "evil.example"], ["evil.example", own], [f"{own},evil.example"]):
        names = "".join(f"Host: {host}\r\n" for host in hosts)
        request = f"GET /v1/models HTTP/1.1\r\n{names}Authorization: Bearer {KEY}\r\n\r\n"
        assert b" 403 " in raw(server, request.encode())


def test_2_our_own_names_and_numbers_pass(server: Serving, http: httpx.Client) -> None:
    port = server.socket.getsockname()[1]
    for name in (f"localhost:{port}", "localhost", "127.0.0.1:1", "[::1]:8", "192.168.7.7"):
        assert http.get("/v1/models", headers={"host": name}).status_code == 200
    own = {"host": f"localhost:{port}", "origin": f"http://localhost:{port}"}
    assert http.get("/v1/models", headers=own).status_code == 200


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/api/chat", "not Ollama"),
        *(("/completion", "not llama.cpp"), ("/generate", "not TGI")),
        ("/v1/conversations/conv_1/items", "send all of one"),
        ("/v1/audio/speech", "is text"),
        ("/v1/responses/resp_1", "not stored"),
        ("/v1/responses/input_tokens", "POST /tokenize"),
        ("/v1/chat/completions/", "none here ends with a slash"),
        ("/chat/completions", "it is /v1/chat/completions"),
        ("/v1/v1/models", "twice"),
        ("/openai/deployments/fake/chat/completions?api-version=1", "not built"),
        ("/v1/realtime?model=fake", "not built"),
    ],
)
def test_3_paths_of_other_servers(http: httpx.Client, path: str, hint: str) -> None:
    assert hint in refused(http.post(path, json={}), 404, "not_found")["message"]


@pytest.mark.parametrize(
    "path",
    [
        b"//v1/models",
        b"/v1//models",
        b"/v1/../v1/models",
        b"/v1/%2e%2e/v1/models",
        b"/v1/models/..%2f..%2fetc",
        b"/v1/models/%00",
        b"/v1/models/a%0d%0ab",
        b"/v1/models\\x",
        b"/v1/models/",
    ],
)
def test_3_odd_paths(server: Serving, path: bytes) -> None:
    came = raw(server, b"GET " + path + b" HTTP/1.1\r\n" + HEAD.encode() + b"\r\n")
    assert b" 404 " in came.split(b"\r\n")[0] or b" 400 " in came.split(b"\r\n")[0], came
    assert b"Location" not in came


BODY = json.dumps({"model": "fake", "prompt": "x", "max_tokens": 1}).encode()
POST = f"POST {TEXT} HTTP/1.1\r\n{HEAD}Content-Type: application/json\r\n".encode()
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = b"\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
NEXT = f"GET /v1/models HTTP/1.1\r\n{HEAD}\r\n".encode()


@pytest.mark.parametrize(
    "data",
    [
        *(
            b"GET %s/v1/models HTTP/1.1\r\n%s\r\n" % (where, HEAD.encode())
            for where in (
                b"http://evil.example",
                b"http://evil@localhost",
                b"ftp://localhost",
                b"http://localhost:1",
            )
        ),
        *(
            b"CONNECT %s HTTP/1.1\r\n%s\r\n" % (where, HEAD.encode())
            for where in (b"evil.example:443", b"/v1/models", b"*", b"http://localhost/v1/models")
        ),
        POST + LENGTH + b"Transfer-Encoding: chunked\r\n" + CHUNKED,
        POST + LENGTH + LENGTH + b"\r\n" + BODY,
        POST + b"Content-Length: %d\r\nContent-Length: 5\r\n\r\n" % len(BODY) + BODY,
        *(
            POST + b"Transfer-Encoding%s\r\n" % coding + CHUNKED
            for coding in (
                b": xchunked",
                b" : chunked",
                b": gzip, chunked",
                b": identity, chunked",
                b": chunked, identity",
                b":\x0bchunked",
                b": chunked\r\nTransfer-Encoding: identity",
            )
        ),
        POST + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n" + BODY,
    ],
)
def test_2_requests_that_another_could_read_otherwise(server: Serving, data: bytes) -> None:
    """Each is refused, and nothing behind it on the connection is read as a request."""
    came = raw(server, data + NEXT, until_closed=True)
    assert came.startswith(b"HTTP/1.1 400 ") and came.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("offer", ["h2c", "websocket"])
def test_an_offer_of_another_protocol_is_passed_over(server: Serving, offer: str) -> None:
    """As Java's client makes one with its first request, whatever that is."""
    more = f"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: {offer}\r\nHTTP2-Settings: AA\r\n"
    last = NEXT.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
    asked = POST + more.encode() + LENGTH
    for data in (
        asked + b"\r\n" + BODY,
        POST + more.encode() + b"Transfer-Encoding: chunked\r\n" + CHUNKED,
    ):
        came = raw(server, data + data + last, until_closed=True)
        assert came.count(b"HTTP/1.1 200 OK") == 3 and came.count(b"text_completion") == 2
    absolute = NEXT.replace(b" /v1", b" http://localhost/v1").replace(
        b"\r\n", b"\r\n" + more.encode(), 1
    )
    assert b" 200 " in raw(server, absolute)


def test_6_bodies_over_the_limit(server: Serving, http: httpx.Client) -> None:
    large = json.dumps(chat("x" * limits.MOST_BODY)).encode()
    typed = {"content-type": "application/json"}
    refused(http.post(CHAT, content=large, headers=typed), 413)
    lying = f"POST {CHAT} HTTP/1.1\r\n{HEAD}Content-Type: application/json\r\n"
    claimed = f"Content-Length: {limits.MOST_BODY + 1}\r\n\r\n"
    assert b" 413 " in raw(server, (lying + claimed).encode())


@pytest.mark.parametrize(
    ("path", "key", "kind", "status"),
    [
        (CHAT, KEY, "application/json", 413),
        (CHAT, "sk-wrong", "application/json", 401),
        (CHAT, KEY, "text/plain", 415),
        ("/nowhere", KEY, "application/json", 404),
        ("/v1/models", KEY, "application/json", 405),
        ("/v1/files", KEY, "application/json", 415),
    ],
)
def test_6_a_refusal_reaches_who_still_writes(
    server: Serving, path: str, key: str, kind: str, status: int
) -> None:
    parts = (b" " * (1 << 20) for _ in range(20))
    with client(server, key) as made:
        response = made.post(path, content=parts, headers={"content-type": kind})
        refused(response, status)
        assert response.headers["connection"] == "close"
        # On a connection of its own: the next one does not meet the end of this.
        assert made.get("/health").status_code == 200


def refused_while_sending(server: Serving, path: str, pieces: int) -> bytes:
    """What a client gets that reads nothing before it has sent all, long after it was refused."""
    head = f"POST {path} HTTP/1.1\r\n{HEAD}Content-Type: multipart/form-data; boundary=x\r\n"
    with socket.create_connection(server.socket.getsockname(), timeout=10) as made:
        made.sendall(f"{head}Content-Length: {1 << 40}\r\n\r\n".encode())
        for _ in range(pieces):
            time.sleep(0.1)
            made.sendall(b" " * (1 << 20))
        came = b""
        while part := made.recv(1 << 16):
            came += part
        return came


@pytest.mark.parametrize(("path", "status"), [("/v1/files", b" 413 "), (CHAT, b" 415 ")])
def test_6_a_refusal_is_not_lost_to_a_reset(server: Serving, path: str, status: bytes) -> None:
    came = refused_while_sending(server, path, 4)
    assert status in came.split(b"\r\n")[0] and came.endswith(b"}}")


def test_6_who_never_stops_sending_is_cut(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.server.protocol.MOST_LATE", 2 << 20)
    with pytest.raises(OSError):
        refused_while_sending(server, CHAT, 100)
    monkeypatch.undo()
    monkeypatch.setattr("quire.server.protocol.LATE_SECONDS", 0.3)
    with pytest.raises(OSError):
        refused_while_sending(server, CHAT, 25)


def test_7_bodies_that_never_come(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.server.reading.BODY_SECONDS", 0.2)
    start = f"POST {CHAT} HTTP/1.1\r\n{HEAD}Content-Type: application/json\r\n"
    assert b" 408 " in raw(server, (start + "Content-Length: 100\r\n\r\n{").encode())
    start += "Expect: 100-continue\r\nContent-Length: 100\r\n\r\n"
    with socket.create_connection(server.socket.getsockname(), timeout=10) as made:
        made.sendall(start.encode())
        came = b"".join(iter(lambda: made.recv(1 << 16), b""))  # in as many pieces as it comes
        assert came.startswith(b"HTTP/1.1 100 ") and came.count(b" 408 ") == 1


def test_8_too_many_or_too_long_headers(server: Serving) -> None:
    start = f"GET /v1/models HTTP/1.1\r\n{HEAD}"
    many = "".join(f"X-{i}: y\r\n" for i in range(limits.MOST_HEADERS))
    assert b" 431 " in raw(server, (start + many + "\r\n").encode())
    long = "X-Long: " + "y" * limits.MOST_HEADER_BYTES
    assert b" 431 " in raw(server, (start + long + "\r\n\r\n").encode())
    assert b" 431 " in raw(server, (start + long).encode())  # and never an end
    longer = start + "X-Long: " + "y" * (4 << 20)
    assert b" 431 " in raw(server, longer.encode())  # though it is still being written


def test_8_what_follows_a_body_is_no_header_and_has_an_end(server: Serving) -> None:
    start = f"POST {CHAT} HTTP/1.1\r\n{HEAD}Connection: close\r\nContent-Type: application/json\r\n"
    start += "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0"
    came = raw(server, f"{start}\r\nAnthropic-Version: 1\r\n\r\n".encode(), until_closed=True)
    assert b" 400 " in came and b'"param":' in came, "in other words otherwise"
    for more in ("\r\nX-T: y" * (1 << 16), "\r\nX-T: " + "y" * (1 << 19), ";x=" + "y" * (1 << 19)):
        assert b" 431 " in raw(server, (start + more).encode(), 4)  # and never an end


def test_9_slow_headers_are_closed_together(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.server.protocol.HEADER_SECONDS", 0.5)
    made = [socket.create_connection(server.socket.getsockname()) for _ in range(100)]
    for each in made:
        each.sendall(b"GET /v1/models HTTP/1.1\r\nHost: lo")
    with client(server) as other:
        assert other.get("/v1/models").status_code == 200
    for each in made:
        each.settimeout(10)
        with suppress(ConnectionResetError):
            assert each.recv(1) == b""
        each.close()


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 5000 + b"]" * 5000,
        b'{"a":' * 100 + b"1" + b"}" * 100,
        b'{"model": NaN}',
        b'{"temperature": 1e400}',
        b'{"model": "\\ud800"}',
        b'{"model": "\xed\xa0\x80"}',
        b"",
        b"[]",
        b'"x"',
        b"{",
        b'{"temperature": ' + b"1" * 10_000 + b"}",
        b'{"model": [' + b"[]," * limits.MOST_INNER + b"1]}",
        b"[" * limits.MOST_BODY,
        b'{"' + b'\\"[' * (limits.MOST_BODY // 3 - 1),
    ],
)
def test_10_json_that_is_none(http: httpx.Client, body: bytes) -> None:
    typed = {"content-type": "application/json"}
    refused(http.post(CHAT, content=body, headers=typed), 400)


def test_10_brackets_in_a_text_are_text(http: httpx.Client) -> None:
    many = '\\"[{' * limits.MOST_INNER
    asked = {"model": "fake", "prompt": "x", "max_tokens": 1, "user": many}
    assert http.post(TEXT, json=asked).status_code == 200


@pytest.mark.parametrize(
    "more",
    [
        {"n": 10**6},
        {"n": 0},
        {"n": 10**30},
        {"n": True},
        {"prompt": ["x"] * 1025},
        {"prompt": ["x"] * 100, "n": 100},
        {"prompt": []},
        {"prompt": [[]]},
        {"prompt": ["x", 5]},
        {"logprobs": 10**6},
        {"stop": ["x"] * 65},
        {"max_tokens": -1},
        {"max_tokens": 0},
        {"temperature": 1e300},
        {"logit_bias": {"-1": 1}},
        {"logit_bias": {"x": 1}},
        {"logit_bias": {str(i): 1 for i in range(1025)}},
        {"bad_words": ["x"] * 1025},
        {"stop_token_ids": [1] * 1025},
        {"allowed_token_ids": [1] * (2**18 + 1)},
        {"stop": "x" * 70_000},
        {"stop": ["x" * 35_000] * 2},
        {"bad_words": ["x" * 700] * 100},
        {"guided_choice": ["x"] * 16_385},
        {"priority": 10**40},
        {"priority": 2**31},
    ],
)
def test_11_numbers_beyond_bounds(
    server: Serving, http: httpx.Client, more: dict[str, Any]
) -> None:
    asked = {"model": "fake", "prompt": "x", "max_tokens": 2, **more}
    error = refused(http.post(TEXT, json=asked), 400)
    assert error["param"] in {*more, "n"}
    assert server.bridge.stats().restarts == 0


@pytest.mark.parametrize("ids", [[-1], [997], [10**12], [2**63], [-(2**40)]])
def test_12_ids_that_are_no_tokens(http: httpx.Client, ids: list[int]) -> None:
    asked = {"model": "fake", "max_tokens": 2}
    refused(http.post(TEXT, json={**asked, "prompt": ids}), 400)
    refused(http.post(TEXT, json={**asked, "prompt": "x", "allowed_token_ids": ids}), 400)


@pytest.mark.parametrize(
    "more",
    [
        {"chat_template": "{{ 7 * 7 }}"},
        {"chat_template_kwargs": {"chat_template": "{{ 7 * 7 }}"}},
        {"chat_template_kwargs": {"messages": []}},
    ],
)
def test_13_templates_in_requests(http: httpx.Client, more: dict[str, Any]) -> None:
    refused(http.post(CHAT, json=chat(**more)), 400)


def _nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"anyOf": [schema, {"type": "array", "items": schema}]}
    return schema


@pytest.mark.parametrize(
    "more",
    [
        {"guided_regex": "(a{1,5000}){1,5000}"},
        {"guided_regex": "(" * 2000},
        {"guided_grammar": "start: " + "a " * 50_000},
        {"guided_json": {"$ref": "#"}},
        {"guided_json": {"type": "object", "patternProperties": {"(x+x+)+y": {}}, "not": {}}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": _nested(14)},
            }
        },
    ],
)
def test_14_bombs_in_grammars(http: httpx.Client, more: dict[str, Any]) -> None:
    began = time.monotonic()
    response = http.post(CHAT, json=chat(max_tokens=2, **more))
    if response.status_code != 200:
        # The fake draws what it likes, and so leaves a grammar that could be compiled.
        left = response.json()["error"]["code"] == "grammar_failed"
        refused(response, 500 if left else 400)
    assert time.monotonic() - began < 10  # 5 s of one, and what the machine is busy with


@pytest.mark.parametrize("place", ["$defs", "definitions", "properties", "required", "$ref"])
@pytest.mark.parametrize("broken", [5, ["a"], "x", True])
def test_14_tools_with_broken_schemas(http: httpx.Client, place: str, broken: Any) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {place: broken}}}
    for more in ({"tool_choice": "required"}, {"response_format": {"type": "json_object"}}):
        response = http.post(CHAT, json=chat(max_tokens=2, tools=[tool], **more))
        if response.status_code != 200:
            left = response.json()["error"]["code"] == "grammar_failed"
            refused(response, 500 if left else 400)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1/x.png", "file:///etc/passwd", "data:image/png;base64,AA"]
)
def test_15_images_are_not_fetched(http: httpx.Client, url: str) -> None:
    parts = [{"type": "image_url", "image_url": {"url": url}}]
    asked = {"model": "fake", "messages": [{"role": "user", "content": parts}]}
    refused(http.post(CHAT, json=asked), 400, "not_supported")


def test_16_special_tokens_in_messages_are_text(http: httpx.Client) -> None:
    """One that counted would bring the engine down."""
    body = http.post(CHAT, json=chat("<crash>", max_tokens=2))
    assert body.status_code == 200
    typed = http.post(CHAT, json=chat("x" * len("<crash>"), max_tokens=2)).json()
    assert body.json()["usage"]["prompt_tokens"] == typed["usage"]["prompt_tokens"]


def test_23_their_request_id_is_not_echoed(http: httpx.Client) -> None:
    given = {"x-request-id": "%0d%0a[31mred"}
    response = http.get("/v1/models", headers=given)
    assert response.status_code == 200
    assert response.headers["x-request-id"].startswith("req_")
    assert "red" not in str(response.headers)


def test_24_wrong_methods_types_and_bodies(http: httpx.Client) -> None:
    refused(http.get(CHAT), 405)
    refused(http.delete("/v1/models"), 405)
    refused(http.request("PATCH", CHAT), 405)
    asked = json.dumps(chat(max_tokens=1)).encode()
    refused(http.post(CHAT, content=asked, headers={"content-type": "text/plain"}), 415)
    form = {"content-type": "application/x-www-form-urlencoded"}
    refused(http.post(CHAT, content=asked, headers=form), 415)
    refused(http.post(CHAT, content=asked, headers={**JSON, "content-encoding": "gzip"}), 415)
    response = http.request("GET", "/v1/models", content=b"{}")
    assert response.status_code in (200, 400)


def test_25_a_reader_that_never_reads_is_cut(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.server.events.SLOW_READER_SECONDS", 0.5)
    asked = {"model": "fake", "prompt": ["x"] * 8, "max_tokens": 300, "stream": True}
    body = json.dumps({**asked, "n": 2, "ignore_eos": True}).encode()
    head = f"POST {TEXT} HTTP/1.1\r\n{HEAD}Content-Type: application/json\r\n"
    # Accepted sockets inherit it: the kernel takes little of what nobody reads.
    server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with socket.socket() as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.connect(server.socket.getsockname())
        made.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        until(lambda: server.bridge.stats().running > 0 or server.bridge._readings)
        until(lambda: not server.bridge._readings, 30)
    until(lambda: not server.bridge.queueing.num_held)


def test_a_body_of_very_many_lists_is_refused_before_it_is_decoded() -> None:
    many = limits.MOST_INNER + 1
    with pytest.raises(ApiError, match="more than 65,536 lists and objects"):
        parse_json(b"[" + b"[]," * many + b"1]")
    assert parse_json(b'["' + b"[{" * many + b'"]') == ["[{" * many]
