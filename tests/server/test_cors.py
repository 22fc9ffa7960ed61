"""Pages of an allowed origin can call the server and read what it says; others cannot."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from quire.server.serve import Serving
from tests.server.serving import chat, client, serving

CHAT = "/v1/chat/completions"
PAGE = "https://app.example"
ALLOWED = "access-control-allow-origin"
ASKS = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-os",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("server")
    with serving(folder, "fake:rows=8", allowed_origins=(PAGE,)) as made:
        yield made


@pytest.fixture
def http(server: Serving) -> Iterator[httpx.Client]:
    with client(server) as made:
        yield made


@pytest.mark.parametrize("path", [CHAT, "/v1/files", "/v1/models"])
def test_a_browser_that_asks_first_is_told_yes_without_a_key(server: Serving, path: str) -> None:
    with client(server, key="") as made:
        answer = made.options(path, headers=ASKS)
    assert answer.status_code == 204
    assert answer.headers[ALLOWED] == PAGE
    assert "POST" in answer.headers["access-control-allow-methods"]
    allowed = answer.headers["access-control-allow-headers"]
    assert allowed == ASKS["access-control-request-headers"]


@pytest.mark.parametrize("stream", [False, True])
def test_an_allowed_page_reads_answers(http: httpx.Client, stream: bool) -> None:
    answer = http.post(CHAT, json=chat(max_tokens=2, stream=stream), headers={"origin": PAGE})
    assert answer.status_code == 200
    assert answer.headers[ALLOWED] == PAGE
    assert answer.headers["vary"] == "origin"
    assert "retry-after" in answer.headers["access-control-expose-headers"]


def test_an_allowed_page_reads_refusals(server: Serving, http: httpx.Client) -> None:
    for answer, status in (
        (http.post(CHAT, json=chat(temperature=9), headers={"origin": PAGE}), 400),
        (http.get("/nowhere", headers={"origin": PAGE}), 404),
    ):
        assert (answer.status_code, answer.headers[ALLOWED]) == (status, PAGE)
    with client(server, key="") as made:
        answer = made.get("/v1/models", headers={"origin": PAGE})
    assert (answer.status_code, answer.headers[ALLOWED]) == (401, PAGE)


@pytest.mark.parametrize("origin", ["https://evil.example", "null", f"{PAGE}.evil.example", "*"])
def test_other_pages_are_told_nothing(http: httpx.Client, origin: str) -> None:
    for answer in (
        http.options(CHAT, headers={**ASKS, "origin": origin}),
        http.post(CHAT, json=chat(max_tokens=1), headers={"origin": origin}),
    ):
        assert answer.status_code == 403
        assert not any(name.startswith("access-control-") for name in answer.headers)


def test_an_allowed_page_is_not_let_in_by_a_foreign_host(http: httpx.Client) -> None:
    assert http.options(CHAT, headers={**ASKS, "host": "evil.example"}).status_code == 403


def test_whoever_shows_no_origin_needs_no_permission(http: httpx.Client) -> None:
    answer = http.get("/v1/models")
    assert ALLOWED not in answer.headers
    assert http.options(CHAT).status_code == 405


def test_options_that_ask_for_no_permission_are_no_preflight(http: httpx.Client) -> None:
    assert http.options(CHAT, headers={"origin": PAGE}).status_code == 405
