"""Messages through a real server, over an engine without a model."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from quire.server import events
from quire.server.serve import Serving
from tests.server.serving import HEAD, KEY, chat, client, serving, until
from tests.server.test_engine_life import kill_engine

PATH, COUNT = "/v1/messages", "/v1/messages/count_tokens"
VERSION = {"anthropic-version": "2023-06-01"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("server")) as made:
        yield made


@pytest.fixture
def http(server: Serving) -> Iterator[httpx.Client]:
    with client(server) as made:
        yield made


def ask(text: str = "hello", **more: Any) -> dict[str, Any]:
    return chat(text, **{"max_tokens": 5, "temperature": 0, **more})


def told(http: httpx.Client, body: dict[str, Any], serving: Serving | None = None) -> list[Any]:
    """The events of a stream: what each is called, and what it holds. The engine of the server,
    where one is given, is killed after the first."""
    with http.stream("POST", PATH, json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = response.iter_lines()
        first = next(lines)
        if serving is not None:
            kill_engine(serving)
        whole = "\n".join([first, *lines])
    found = []
    for event in whole.strip().split("\n\n"):
        name, data = event.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def refused(response: httpx.Response, status: int, kind: str) -> str:
    assert response.status_code == status, response.text
    body = response.json()
    assert body["type"] == "error" and body["error"]["type"] == kind
    assert body["error"].keys() == {"type", "message"}
    assert body["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]
    return str(body["error"]["message"])


def test_a_message_is_what_a_chat_is(http: httpx.Client) -> None:
    message = http.post(PATH, json=ask(system="s"))
    turns = [{"role": "system", "content": "s"}, {"role": "user", "content": "hello"}]
    same = http.post("/v1/chat/completions", json={**ask(), "messages": turns}).json()
    assert message.headers["request-id"].startswith("req_")
    body = message.json()
    assert body["id"].startswith("msg_") and body["model"] == "fake"
    text = same["choices"][0]["message"]["content"]
    assert body["content"] == [{"type": "text", "text": text}]  # all of it: some clients are strict
    assert (body["stop_reason"], body["stop_sequence"]) == ("max_tokens", None)
    usage, expected = body["usage"], same["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == expected["prompt_tokens"]
    assert usage["output_tokens"] == 5


def test_a_stream_has_its_events_by_their_names(http: httpx.Client) -> None:
    whole = http.post(PATH, json=ask(max_tokens=20)).json()
    came = told(http, ask(max_tokens=20))
    assert all(name == event["type"] for name, event in came)
    names = [name for name, _ in came]
    assert names[:2] == ["message_start", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(names[2:-3]) == {"content_block_delta"} and len(names) > 8
    text = "".join(event["delta"]["text"] for _, event in came[2:-3])
    assert text == whole["content"][0]["text"]
    assert came[0][1]["message"]["usage"]["input_tokens"] > 0
    assert came[-2][1]["usage"]["output_tokens"] == 20
    assert came[-2][1]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}


def test_a_stop_sequence_is_told(http: httpx.Client) -> None:
    text = http.post(PATH, json=ask(max_tokens=20)).json()["content"][0]["text"]
    stop = text[10:14]
    body = http.post(PATH, json=ask(max_tokens=20, stop_sequences=["never", stop])).json()
    assert (body["stop_reason"], body["stop_sequence"]) == ("stop_sequence", stop)
    assert body["content"][0]["text"] == text.partition(stop)[0]


def test_the_last_message_of_an_assistant_is_gone_on_with(http: httpx.Client) -> None:
    turns = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "well, "}]
    body = http.post(PATH, json={**ask(), "messages": turns}).json()
    prompt = {"model": "fake", "prompt": "<user>hello<assistant>well, ", "max_tokens": 5}
    same = http.post("/v1/completions", json={**prompt, "temperature": 0}).json()
    assert body["content"][0]["text"] == same["choices"][0]["text"]


def test_tokens_are_counted(http: httpx.Client) -> None:
    body = {"model": "fake", "messages": [{"role": "user", "content": "hello"}], "system": "s"}
    count = http.post(COUNT, json=body).json()
    assert count == {"input_tokens": len("<system>s<user>hello")}
    usage = http.post(PATH, json={**body, "max_tokens": 1}).json()["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == count["input_tokens"]
    why = refused(http.post(COUNT, json={**body, "max_tokens": 4}), 400, "invalid_request_error")
    assert "belongs to /v1/messages" in why


def test_models_are_listed_in_both_shapes(http: httpx.Client) -> None:
    for headers in ({}, VERSION):
        listed = http.get("/v1/models", headers=headers).json()
        [model] = listed["data"]
        assert (model["object"], model["type"], model["id"]) == ("model", "model", "fake")
        assert model["display_name"] == "fake" and model["created_at"].endswith("Z")
        assert model["max_input_tokens"] == model["max_model_len"]
        assert listed["has_more"] is False and listed["first_id"] == listed["last_id"] == "fake"
        assert http.get("/v1/models/fake", headers=headers).json() == model
    refused(http.get("/v1/models/x", headers=VERSION), 404, "not_found_error")
    assert http.get("/v1/models/x").json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("more", "status", "kind", "words"),
    [
        ({"max_tokens": None}, 400, "invalid_request_error", "the body has no max_tokens"),
        ({"max_tokens": 0}, 400, "invalid_request_error", "max_tokens"),
        ({"model": "gpt"}, 404, "not_found_error", "ask for fake"),
        ({"temperature": "x"}, 400, "invalid_request_error", "temperature is a number"),
        ({"temperature": 7}, 400, "invalid_request_error", "temperature"),
        ({"n": 2}, 400, "invalid_request_error", "belongs to /v1/chat/completions"),
        ({"container": "c"}, 400, "invalid_request_error", "container is not supported"),
        (
            {"messages": [{"role": "user", "content": "x " * 5000}]},
            *(400, "invalid_request_error", "prompt is too long"),
        ),
        (
            {"tools": [{"name": "f", "input_schema": {"type": 5}}], "tool_choice": {"type": "any"}},
            *(400, "invalid_request_error", "tools[0].input_schema"),
        ),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": 5}}}},
            *(400, "invalid_request_error", "output_config.format.schema"),
        ),
    ],
)
def test_what_is_wrong_is_said_as_clients_know_it(
    http: httpx.Client, more: dict[str, Any], status: int, kind: str, words: str, stream: bool
) -> None:
    response = http.post(PATH, json={**ask(), **more, "stream": stream})
    assert words in refused(response, status, kind)


def test_an_image_for_a_model_of_text_is_refused_where_it_stands(http: httpx.Client) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    image = {"type": "image", "source": source}
    turns = [{"role": "user", "content": [{"type": "text", "text": "x"}, image]}]
    response = http.post(PATH, json={**ask(system="s"), "messages": turns})
    why = refused(response, 400, "invalid_request_error")
    assert "messages[0].content[1]" in why and "reads text alone" in why


def test_refusals_of_the_doors_have_the_same_shape(server: Serving, http: httpx.Client) -> None:
    with client(server, "") as stranger:
        refused(stranger.post(PATH, json=ask()), 401, "authentication_error")
        assert stranger.post(PATH, json=ask(), headers={"x-api-key": KEY}).status_code == 200
        assert "error" in stranger.get("/v1/models").json()
        refused(stranger.get("/v1/models", headers=VERSION), 401, "authentication_error")
    foreign = http.post(PATH, json=ask(), headers={"origin": "https://evil.example"})
    refused(foreign, 403, "permission_error")
    refused(http.get(PATH), 405, "invalid_request_error")
    refused(http.post(PATH, content=b"{"), 400, "invalid_request_error")
    large = http.post(PATH, content=b" " * (9 << 20), headers={"content-type": "application/json"})
    refused(large, 413, "request_too_large")
    assert http.post(f"{PATH}?beta=true", json=ask()).status_code == 200


@pytest.mark.parametrize(
    "content",
    [
        '"\\ud800"',
        "[" * 70 + "]" * 70,
        '[{"type":"text","text":"x\\udfff"}]',
        '[{"type":"tool_result","tool_use_id":"a","content":' + "[" * 90 + "]" * 90 + "}]",
    ],
)
def test_texts_that_are_none_and_deep_blocks_are_400(http: httpx.Client, content: str) -> None:
    body = f'{{"model":"fake","max_tokens":2,"messages":[{{"role":"user","content":{content}}}]}}'
    headers = {"content-type": "application/json"}
    refused(http.post(PATH, content=body, headers=headers), 400, "invalid_request_error")


def test_a_full_queue_is_429_and_a_stopping_server_529(tmp_path: Path) -> None:
    with (
        serving(tmp_path, "fake:rows=1:delay=0.05", max_queue=1) as made,
        client(made) as http,
        http.stream("POST", PATH, json=ask(max_tokens=400, stream=True)) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        full = http.post(PATH, json=ask())
        refused(full, 429, "rate_limit_error")
        assert full.headers["retry-after"]
        made.bridge.drain()
        refused(http.post(PATH, json=ask()), 529, "overloaded_error")


@pytest.mark.parametrize("stream", [False, True])
def test_who_leaves_is_not_written_for(tmp_path: Path, stream: bool) -> None:
    with serving(tmp_path, "fake:rows=4:delay=0.05") as made:
        body = json.dumps(ask(max_tokens=2000, stream=stream)).encode()
        head = f"POST {PATH} HTTP/1.1\r\n{HEAD}Content-Type: application/json\r\n"
        with socket.create_connection(made.socket.getsockname()) as left:
            left.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            until(lambda: made.bridge.stats().running == 1)
        until(lambda: made.bridge.stats().running == 0)


def test_a_stream_that_fails_ends_with_an_error_event(tmp_path: Path) -> None:
    with serving(tmp_path, "fake:delay=0.05") as made, client(made) as http:
        came = told(http, ask(max_tokens=300), made)
    name, event = came[-1]
    assert came[0][0] == "message_start" and name == event["type"] == "error"
    assert event["error"]["type"] == "api_error" and event["request_id"].startswith("req_")


def test_a_silent_stream_pings_in_the_words_of_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "PING_SECONDS", 0.1)
    with serving(tmp_path, "fake:rows=1:delay=0.4") as made, client(made) as http:
        came = told(http, ask(max_tokens=3))
    assert ("ping", {"type": "ping"}) in came
    assert [name for name, _ in came if name != "ping"][-1] == "message_stop"
