"""The fetcher against real sockets. Addresses of this machine are private, so the judge of
addresses is the one part that the tests put aside; it has its own."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

import pytest

from quire.inputs.media import fetch

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"


def serve_once(answer: Callable[[socket.socket], None]) -> int:
    listening = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        with listening, listening.accept()[0] as connection:
            connection.recv(65_536)
            with suppress(OSError):  # the fetcher hangs up, which is what some tests are about
                answer(connection)

    threading.Thread(target=run, daemon=True).start()
    return int(listening.getsockname()[1])


def get(port: int, most: int = 100) -> bytes:
    return fetch.fetched(urlsplit(f"http://a.example:{port}/x.png"), ("A.example",), most)


@pytest.fixture(autouse=True)
def addresses_are_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_public_address", lambda host, port: "127.0.0.1")


def test_the_body_of_one_answer() -> None:
    assert get(serve_once(lambda it: it.sendall(HEAD + b"image"))) == b"image"


def drip(connection: socket.socket, opening: bytes) -> None:
    connection.sendall(opening)
    for _ in range(600):
        connection.sendall(b"x")
        time.sleep(0.05)


@pytest.mark.parametrize(
    "opening", [b"HTTP/1.1 200 OK\r\nX: ", HEAD.replace(b"5", b"99"), b""], ids=str
)
def test_a_byte_at_a_time_ends_with_the_seconds(
    opening: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "SECONDS", 0.5)
    began = time.monotonic()
    with pytest.raises(ValueError, match="it took more than"):
        get(serve_once(lambda it: drip(it, opening)), most=10_000)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (HEAD + b"ima", "ended 2 bytes early"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\n\r\n", "redirects are not"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 101, "more than 100 bytes"),
        (b"garbage\r\n\r\n", "BadStatusLine"),
    ],
)
def test_answers_that_are_refused(answer: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        get(serve_once(lambda it: it.sendall(answer)))


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://b.example/", "which allowed_media_domains does not name"),
        ("http://u:p@a.example/", "holds a name or a password"),
        ("http://a.example:99999/", "could not be fetched"),
    ],
)
def test_urls_that_are_not_opened(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        fetch.fetched(urlsplit(url), ("a.example",), 100)
