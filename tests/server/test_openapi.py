"""/openapi.json says what the server does: its paths, its fields, and what it may answer."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

import quire
from docs.render_server import PAGE
from quire.openai_api.fields import CHAT, COMPLETIONS, MESSAGES, RESPONSES, SCORE, TABLE
from quire.server.serve import Serving
from tests.server.serving import chat, client, serving

SOURCES = [
    path
    for room in ("server", "openai_api", "anthropic_api")
    for path in (Path(quire.__file__).parent / room).rglob("*.py")
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("server")) as made:
        yield made


@pytest.fixture
def http(server: Serving) -> Iterator[httpx.Client]:
    with client(server) as made:
        yield made


@pytest.fixture
def told(http: httpx.Client) -> dict[str, Any]:
    found: dict[str, Any] = http.get("/openapi.json").json()
    return found


def body(told: dict[str, Any], path: str) -> Any:
    content = told["paths"][path]["post"]["requestBody"]["content"]
    return content["application/json"]["schema"]


def test_each_described_operation_is_there_and_no_other(
    http: httpx.Client, told: dict[str, Any]
) -> None:
    for path, operations in told["paths"].items():
        for method in ("get", "post", "delete", "put", "patch"):
            asked = http.request(method, re.sub("{.*?}", "x", path))
            assert (asked.status_code == 405) == (method not in operations), (method, path)
            if asked.status_code == 405:
                allowed = set(asked.headers["allow"].lower().split(", ")) - {"head"}
                assert allowed == operations.keys(), path
            if method in operations:
                assert "nothing at this path" not in asked.text, path
                assert str(asked.status_code) in operations[method]["responses"], path


def test_the_pages_name_every_path(told: dict[str, Any]) -> None:
    pages = PAGE.read_text(encoding="utf-8") + PAGE.with_name("batches.md").read_text("utf-8")
    named = set(re.findall(r"`(?:[A-Z]+ )?(/[\w/.]*)", pages))
    of_the_page = {"/quire/status", "/download"}  # nobody else's
    assert {path.partition("/{")[0] for path in told["paths"]} - of_the_page <= named


def test_bodies_have_the_fields_of_the_table(told: dict[str, Any]) -> None:
    for path, fields in TABLE.items():
        schema = body(told, path)
        assert schema["properties"].keys() == fields.keys() and not schema["additionalProperties"]
        assert ("model" in schema["required"]) == (path != SCORE)
        assert schema["properties"]["model"]["enum"] == ["fake"]
    chat = body(told, CHAT)
    assert chat["required"] == ["model", "messages"]
    assert chat["properties"]["messages"]["type"] == ["array"]
    assert chat["properties"]["temperature"]["type"] == ["integer", "number", "null"]
    assert chat["properties"]["modalities"]["enum"] == [None, ["text"]]
    assert "type" not in chat["properties"]["user"], "moot: whatever it holds"


def test_refusals_have_the_shape_that_is_described(
    http: httpx.Client, told: dict[str, Any]
) -> None:
    error = told["components"]["schemas"]["Refusal"]
    assert http.get("/v1/files/x").json()["error"].keys() == error["properties"].keys()
    assert set(error["required"]) == error["properties"].keys()
    refusals = told["paths"][MESSAGES]["post"]["responses"]
    assert "503" not in refusals
    for status, answer in (("400", http.post(MESSAGES, json={})), ("529", None)):
        name = refusals[status]["$ref"].rpartition("/")[2]
        schema = told["components"]["responses"][name]["content"]["application/json"]["schema"]
        rules = jsonschema.Draft202012Validator({**schema, "components": told["components"]})
        assert not rules.is_valid({})
        if answer is not None:
            rules.validate(answer.json())


def test_answers_have_the_shapes_that_are_described(
    http: httpx.Client, told: dict[str, Any]
) -> None:
    prompt = {"model": "fake", "prompt": "hello", "max_tokens": 3}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    asks: list[tuple[str, str, Any]] = [
        *(("get", path, None) for path in told["paths"] if "{" not in path),
        ("post", CHAT, chat(return_token_ids=True, n=2, max_tokens=3)),
        ("post", CHAT, chat(tools=[tool], tool_choice="auto")),
        ("post", COMPLETIONS, {**prompt, "echo": True, "return_token_ids": True}),
        ("post", RESPONSES, {"model": "fake", "input": "hello"}),
        ("post", MESSAGES, chat(max_tokens=3)),
        ("post", f"{MESSAGES}/count_tokens", chat()),
        ("post", "/tokenize", {"prompt": "hello", "return_token_strs": True}),
        ("post", "/detokenize", {"tokens": [5]}),
    ]
    shown = set()
    for method, path, asked in asks:
        described = told["paths"][path].get(method)
        if described is None or "application/json" not in described["responses"]["200"]["content"]:
            continue
        answer = http.request(method, path, json=asked)
        assert answer.status_code == 200, (path, answer.text)
        schema = described["responses"]["200"]["content"]["application/json"]["schema"]
        rules = jsonschema.Draft202012Validator({**schema, "components": told["components"]})
        rules.validate(answer.json())
        assert path == "/openapi.json" or not rules.is_valid({}), f"{path}: no key is required"
        shown.add(path)
    assert {CHAT, COMPLETIONS, RESPONSES, MESSAGES, "/tokenize", "/v1/files", "/v1/models"} <= shown


def test_every_status_that_is_raised_is_described(told: dict[str, Any]) -> None:
    described = {
        int(status)
        for operations in told["paths"].values()
        for operation in operations.values()
        for status in operation["responses"]
    }
    raised = {
        node.value
        for source in SOURCES
        for call in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        and getattr(call.func, "id", "") in ("ApiError", "server_error")
        for node in [*call.args[:1], *(k.value for k in call.keywords if k.arg == "status")]
        if isinstance(node, ast.Constant) and isinstance(node.value, int)
    }
    assert {400, 401, 403, 404, 408, 413, 415, 429, 503, 507} <= raised
    assert raised <= described and described - raised <= {200, 431, 500, 529}


def test_who_needs_no_key_is_told_so(told: dict[str, Any]) -> None:
    free = {
        path
        for path, operations in told["paths"].items()
        for operation in operations.values()
        if not operation["security"]
    }
    assert free == {"/", "/health", "/live", "/download/{token}"}
    assert "401" not in told["paths"]["/health"]["get"]["responses"]
    assert "401" in told["paths"]["/version"]["get"]["responses"]
