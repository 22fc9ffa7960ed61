"""Requests whose own parameters contradict each other are the client's fault: 400, never 500."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.server.serving import client, serving
from tests.tiny_llm import CONFIG

CAT, EOS = 2644, 2  # " cat"
TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
YES = {"structured_outputs": {"regex": "yes"}}


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    options: dict[str, Any] = {"tokenizer": "smollm2", "load_format": "dummy", "dtype": "float32"}
    options |= {"kv_cache_memory_bytes": 8 << 20}
    with (
        serving(folder / "data", str(folder), names=("tiny",), options=options) as server,
        client(server) as made,
    ):
        yield made


def body(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "a", "max_tokens": 5, **more}


@pytest.mark.parametrize(
    "options",
    [
        {"allowed_token_ids": [CAT], "bad_words": ["cat"]},
        {"allowed_token_ids": [EOS], "min_tokens": 2},
    ],
)
def test_what_can_be_seen_at_once_is_an_invalid_request(
    http: httpx.Client, options: dict[str, Any]
) -> None:
    answer = http.post(TEXT, json=body(**options))
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["type"] == "invalid_request_error"
    assert error["param"] == "allowed_token_ids" and "leaves no token to draw" in error["message"]


def test_what_shows_while_it_is_written_is_one_with_a_code_of_its_own(http: httpx.Client) -> None:
    answer = http.post(TEXT, json=body(allowed_token_ids=[CAT], **YES))
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["type"] == "invalid_request_error"
    assert error["code"] == "no_token_left" and "allowed_token_ids=[2644]" in error["message"]
    assert http.post(TEXT, json=body()).status_code == 200


def test_a_stream_ends_with_it(http: httpx.Client) -> None:
    asked = body(
        allowed_token_ids=[CAT, 10407], stream=True, structured_outputs={"regex": "yes[0-9]"}
    )
    lines = [line for line in http.post(TEXT, json=asked).text.split("\n") if line]
    error = json.loads(lines[-1].removeprefix("data: "))["error"]
    assert error["code"] == "no_token_left" and error["type"] == "invalid_request_error"


def test_anthropics_clients_are_told_too(http: httpx.Client) -> None:
    asked = {"model": "tiny", "max_tokens": 5, "messages": [{"role": "user", "content": "a"}]}
    answer = http.post("/v1/messages", json={**asked, "allowed_token_ids": [CAT], **YES})
    assert answer.status_code == 400, answer.text
