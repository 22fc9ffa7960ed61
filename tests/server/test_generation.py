"""Chats and completions through a real server, over an engine without a model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from quire.logprobs import Logprob
from quire.openai_api.bodies import call_id
from quire.openai_api.outputs import TokenScore
from quire.outputs import CompletionOutput, RequestOutput
from quire.server.child.outputs import Place
from quire.server.serve import Serving
from tests.server.serving import HEAD, KEY, chat, client, raw, serving

CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("server")) as made:
        yield made


@pytest.fixture
def http(server: Serving) -> Iterator[httpx.Client]:
    with client(server) as made:
        yield made


def events(http: httpx.Client, path: str, body: dict[str, Any]) -> list[Any]:
    with http.stream("POST", path, json=body) as response:
        assert response.status_code == 200, response.read()
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_a_chat_is_answered_whole(http: httpx.Client) -> None:
    body = http.post(CHAT, json=chat(max_tokens=5, temperature=0)).json()
    [choice] = body["choices"]
    assert choice["message"]["role"] == "assistant" and choice["message"]["content"]
    assert choice["message"]["refusal"] is None and choice["logprobs"] is None
    assert choice["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 5
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + 5


def test_a_stream_has_the_text_of_the_whole(http: httpx.Client) -> None:
    asked = chat(max_tokens=20, temperature=0)
    whole = http.post(CHAT, json=asked).json()
    chunks = events(
        http, CHAT, {**asked, "stream": True, "stream_options": {"include_usage": True}}
    )
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])
    assert text == whole["choices"][0]["message"]["content"]
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 20
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert all(c["usage"] is None for c in chunks[:-1])


def test_nothing_in_a_text_ends_the_line_of_its_event(http: httpx.Client) -> None:
    """httpx splits lines where str.splitlines does, and many clients read with it."""
    text = "a\x85b\u2028c\u2029d"
    asked = {"model": "fake", "prompt": text, "echo": True, "stream": True, "max_tokens": 1}
    told = "".join(one["choices"][0]["text"] for one in events(http, "/v1/completions", asked))
    assert told.startswith(text)


@pytest.mark.parametrize("num_top", [0, 3])
def test_scores_come_with_every_token(num_top: int, http: httpx.Client) -> None:
    asked = {"model": "fake", "prompt": "x", "max_tokens": 9, "logprobs": num_top, "seed": 4}
    [choice] = http.post(TEXT, json=asked).json()["choices"]
    scores = choice["logprobs"]
    assert len(scores["tokens"]) == len(scores["token_logprobs"]) == 9
    assert all(-32 < logprob <= 0 for logprob in scores["token_logprobs"])
    chunks = events(http, TEXT, {**asked, "stream": True})
    parts = [c["choices"][0]["logprobs"] for c in chunks if c["choices"]]
    assert [one for part in parts if part for one in part["token_logprobs"]] == [
        *scores["token_logprobs"]
    ]


def test_all_choices_of_a_stream_are_opened_first_and_in_order(http: httpx.Client) -> None:
    chunks = events(http, CHAT, chat(n=3, max_tokens=4, stream=True, seed=1))
    assert [c["choices"][0]["index"] for c in chunks[:3]] == [0, 1, 2]
    roles = [c for c in chunks if "role" in c["choices"][0]["delta"]]
    assert len(roles) == 3


@pytest.mark.parametrize("prompt", ["once", [5, 6, 7], ["a", "b"], [[5, 6], [7, 8]]])
def test_prompts_are_text_ids_or_lists_of_either(http: httpx.Client, prompt: Any) -> None:
    asked = {"model": "fake", "prompt": prompt, "max_tokens": 3, "temperature": 0}
    body = http.post(TEXT, json=asked).json()
    many = isinstance(prompt, list) and not isinstance(prompt[0], int)
    assert [c["index"] for c in body["choices"]] == list(range(len(prompt) if many else 1))
    chunks = events(http, TEXT, {**asked, "stream": True})
    for choice in body["choices"]:
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == choice["index"]]
        assert "".join(c["text"] for c in mine) == choice["text"]
        assert mine[-1]["finish_reason"] == "length"


def test_a_name_with_slashes_and_metrics_as_vllm_calls_them(tmp_path: Path) -> None:
    names = ("org/model", "short")
    with serving(tmp_path, names=names, vllm_metrics=True) as server, client(server) as http:
        assert [one["id"] for one in http.get("/v1/models").json()["data"]] == list(names)
        assert http.get("/v1/models/org/model").json()["id"] == "org/model"
        asked = {"model": "org/model", "prompt": "x", "max_tokens": 3}
        told = {"include_usage": True, "continuous_usage_stats": True}
        chunks = events(http, TEXT, {**asked, "stream": True, "stream_options": told})
        assert [c["usage"]["completion_tokens"] for c in chunks] == [1, 2, 3, 3]
        text = http.get("/metrics").text
    for family in ("quire", "vllm"):
        for name in ("generation_tokens_total", "num_requests_running", "kv_cache_usage_perc"):
            assert f'{family}:{name}{{engine="0",model_name="org/model"}}' in text, text
        last = 'e2e_request_latency_seconds_bucket{engine="0",le="7680.0"'
        assert f"{family}:{last}" in text, text


@pytest.mark.parametrize(
    ("header", "before"), [("Api-Key", ""), ("X-Api-Key", ""), ("Authorization", "bearer   ")]
)
def test_a_key_may_come_as_clients_of_others_send_it(
    server: Serving, header: str, before: str
) -> None:
    with client(server, "") as made:
        for key, status in ((KEY, 200), (KEY[:-1], 401)):
            sent = {header: f"{before}{key}"}
            assert made.get("/v1/models", headers=sent).status_code == status


BAD: Any = {"type": "nothing"}  # a schema
FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": BAD}}
FLAT = {"type": "json_schema", "name": "x", "schema": BAD}
FINE = {"name": "f"}


def function(**more: Any) -> dict[str, Any]:
    return {"type": "function", **more}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "more", "param"),
    [
        (CHAT, {"response_format": FORM}, "response_format.json_schema.schema"),
        (CHAT, {"response_format": {**FLAT, "type": "json_object"}}, "response_format.schema"),
        (TEXT, {"structured_outputs": {"json": BAD}}, "structured_outputs.json"),
        (TEXT, {"structured_outputs": {"x": 1}}, "structured_outputs"),
        (TEXT, {"guided_regex": "(a"}, "guided_regex"),
        (CHAT, {"guided_json": BAD}, "guided_json"),
        (
            CHAT,
            {
                "tools": [
                    function(function=one) for one in (FINE, {"name": "g", "parameters": BAD})
                ],
                "tool_choice": function(function={"name": "g"}),
            },
            "tools[1].function.parameters",
        ),
        (
            RESPONSES,
            {"tools": [function(name="g", parameters=BAD)], "tool_choice": "required"},
            "tools[0].parameters",
        ),
        (RESPONSES, {"text": {"format": FLAT}}, "text.format.schema"),
        (RESPONSES, {"text": {"format": {"type": "xml"}}}, "text.format"),
        (RESPONSES, {"max_output_tokens": -1}, "max_output_tokens"),
        (RESPONSES, {"input": [{"role": "user", "content": [{"type": "x"}]}]}, "input"),
        (CHAT, {"max_completion_tokens": 0}, "max_completion_tokens"),
    ],
)
def test_errors_name_the_field_that_was_sent(
    http: httpx.Client, path: str, more: dict[str, Any], param: str, stream: bool
) -> None:
    bodies: dict[str, Any] = {CHAT: chat(), TEXT: {"prompt": "x"}, RESPONSES: {"input": "x"}}
    asked = {"model": "fake", **bodies[path], **more, "stream": stream}
    response = http.post(path, json=asked)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param, response.text


def test_usage_in_a_stream_counts_answers_that_wait(tmp_path: Path) -> None:
    told = {"include_usage": True, "continuous_usage_stats": True}
    asked = {"model": "fake", "prompt": "x", "max_tokens": 3, "n": 2, "ignore_eos": True}
    with serving(tmp_path, "fake:rows=1") as server, client(server) as http:
        chunks = events(http, TEXT, {**asked, "stream": True, "stream_options": told})
    assert [c["usage"]["completion_tokens"] for c in chunks] == [1, 2, 3, 4, 5, 6, 6]


def test_usage_counts_the_prompt_from_the_opening_on(http: httpx.Client) -> None:
    told = {"include_usage": True, "continuous_usage_stats": True}
    asked = {"model": "fake", **chat(), "max_tokens": 2, "ignore_eos": True}
    chunks = events(http, CHAT, {**asked, "stream": True, "stream_options": told})
    counted = [(c["usage"]["prompt_tokens"], c["usage"]["completion_tokens"]) for c in chunks]
    [prompt] = {prompt for prompt, _ in counted}
    assert prompt > 0 and counted[0] == (prompt, 0) and counted[-1] == (prompt, 2)


def test_nothing_is_no_tokens_and_back(http: httpx.Client) -> None:
    nothing = {"prompt": "", "add_special_tokens": False}
    assert http.post("/tokenize", json=nothing).json()["tokens"] == []
    assert http.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}
    asked = {"model": "fake", **nothing}
    assert http.post("/v1/completions", json=asked).json()["error"]["param"] == "prompt"


def test_of_megabytes_that_are_cut_the_end_is_read(http: httpx.Client) -> None:
    end = "the last forty characters of a long book"
    asked = {"model": "fake", "max_tokens": 3, "temperature": 0}
    long = "x y\n" * 1_000_000 + end
    cut = http.post(TEXT, json={**asked, "prompt": long, "truncate_prompt_tokens": 40}).json()
    assert cut["choices"] == http.post(TEXT, json={**asked, "prompt": end}).json()["choices"]
    assert cut["usage"]["prompt_tokens"] == 40
    counted = http.post("/tokenize", json={"prompt": long})
    assert counted.status_code == 400 and "2,097,152" in counted.json()["error"]["message"]


def test_a_stream_that_waits_shows_that_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.server.events.PING_SECONDS", 0.1)
    asked: Any = {"model": "fake", "prompt": "slow", "max_tokens": 6, "stream": True}
    with serving(tmp_path, "fake:rows=1:delay=0.25") as slow:
        with client(slow) as http, http.stream("POST", TEXT, json=asked) as response:
            came = b"".join(response.iter_raw())
        pings, _, rest = came.partition(b"data: ")
        assert pings == b": ping\n" * pings.count(b"\n") and pings  # before the first token
        assert b"\n\n: ping\n" in rest  # and between two
        with OpenAI(base_url=f"{slow.address}/v1", api_key=KEY, max_retries=0) as official:
            chunks = list(official.completions.create(**asked))
        assert chunks[-1].choices[0].finish_reason == "length"
        # Its headers are out: a refusal that comes late is an event.
        late = {**asked, "prompt": [1] * 50, "guided_regex": "(a{1,500}){1,50}b"}
        with client(slow) as http, http.stream("POST", TEXT, json=late) as response:
            told = b"".join(response.iter_raw())
        assert response.status_code in (200, 400) and b'"error":' in told
        assert b"[DONE]" not in told


def test_calls_of_two_turns_have_names_of_their_own() -> None:
    first, second = (call_id(name, 0, 0) for name in ("chatcmpl-1", "chatcmpl-2"))
    assert len({first, second, call_id("chatcmpl-1", 1, 0), call_id("chatcmpl-1", 0, 1)}) == 4
    assert first == call_id("chatcmpl-1", 0, 0)  # made again, a line of a batch is the same


def test_a_prompt_given_up_half_read_has_the_scores_that_are_there() -> None:
    answer = CompletionOutput(0, "", [], None, None, finish_reason="abort")
    scores = [None, {5: Logprob(-1.0, 1, "b")}]
    told = RequestOutput("1", "a b c", [4, 5, 6], scores, [answer], True)
    made = Place(1, num_prompt_top=1).output(told)
    assert made.prompt_logprobs == (None, TokenScore(5, "b", -1.0, ((5, "b", -1.0),)))


@pytest.mark.parametrize("head", [HEAD, HEAD.partition("\r\n")[2]], ids=["host", "no host"])
def test_http_of_old_is_answered_without_chunks(server: Serving, head: str) -> None:
    """Checks of proxies come so, and without a Host, which no browser leaves out."""
    asked = f"POST {TEXT} HTTP/1.0\r\n{head}Content-Type: application/json\r\n"
    for more in (b"", b', "stream": true'):
        body = b'{"model": "fake", "prompt": "x", "max_tokens": 1%s}' % more
        came = raw(
            server,
            asked.encode() + b"Content-Length: %d\r\n\r\n%s" % (len(body), body),
            until_closed=True,
        )
        told, _, answer = came.partition(b"\r\n\r\n")
        assert told.startswith(b"HTTP/1.1 200 ") and b"chunked" not in told
        assert answer.endswith(b"data: [DONE]\n\n" if more else b"}")
        assert answer.startswith(b"data: {" if more else b"{")
    assert raw(server, b"GET /health HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 403 ")
