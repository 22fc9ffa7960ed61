"""The fetcher against real sockets. Addresses of this machine are private, so the judge of
addresses is the one part that most tests put aside; those at the end are about it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import pytest

from quire.inputs.media import fetch
from quire.inputs.media.allowed import Fetching

judged = fetch._public_address
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"


def serve_once(answer: Callable[[socket.socket], None], asked: list[bytes] | None = None) -> int:
    listening = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        with listening, listening.accept()[0] as connection:
            heard = connection.recv(65_536)
            if asked is not None:
                asked.append(heard)
            with suppress(OSError):  # the fetcher hangs up, which is what some tests are about
                answer(connection)

    threading.Thread(target=run, daemon=True).start()
    return int(listening.getsockname()[1])


def get(port: int, most: int = 100) -> bytes:
    hosts = (f"A.example:{port}",) if port != 80 else ("A.example",)
    return fetch.fetched(urlsplit(f"http://a.example:{port}/x.png"), Fetching(hosts, most))


@pytest.fixture(autouse=True)
def addresses_are_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_public_address", lambda *_: "127.0.0.1")


def test_the_body_of_one_answer() -> None:
    assert get(serve_once(lambda it: it.sendall(HEAD + b"image"))) == b"image"


def test_signs_that_no_request_holds_are_written_out() -> None:
    asked: list[bytes] = []

    port = serve_once(lambda it: it.sendall(HEAD + b"image"), asked)
    url = f"http://a.example:{port}/caf\u00e9 1%20.png?a=b&c=[d]"
    hosts = (urlsplit(url).netloc,)
    assert fetch.fetched(urlsplit(url), Fetching(hosts)) == b"image"
    assert asked[0].startswith(b"GET /caf%C3%A9%201%20.png?a=b&c=[d] HTTP/1.1\r\n")


def test_all_media_of_a_prompt_share_its_bytes_and_seconds() -> None:
    ports = [serve_once(lambda it: it.sendall(HEAD + b"image")) for _ in range(3)]
    fetching = Fetching(tuple(f"a.example:{port}" for port in ports), bytes_left=12)
    urls = [urlsplit(f"http://a.example:{port}/x.png") for port in ports]
    assert [fetch.fetched(url, fetching) for url in urls[:2]] == [b"image"] * 2
    with pytest.raises(ValueError, match="more than 2 bytes, all that its prompt has left"):
        fetch.fetched(urls[2], fetching)
    fetching.deadline = time.monotonic()
    with pytest.raises(ValueError, match="it took more than 0 s"):
        fetch.fetched(urls[0], fetching)


def test_a_resolver_that_does_not_answer_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(fetch, "SECONDS", 0.2)
    monkeypatch.setattr(fetch, "_public_address", judged)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait())
    with pytest.raises(ValueError, match="it took more than"):
        get(80)
    over.set()


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
        (HEAD.replace(b"5", b"101"), "more than 100 bytes"),  # refused before any of them
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
        ("http://a.example:8080/", "the host 'a.example:8080', which allowed_media_domains does"),
        ("https://a.example:80/", "the host 'a.example:80', which"),
        ("http://c.example/", "the host 'c.example', which"),
    ],
)
def test_urls_that_are_not_opened(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        fetch.fetched(urlsplit(url), Fetching(("a.example", "c.example:8080")))


class Names:
    """A resolver that says something else each time it is asked for a name."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)

    def __call__(self, host: str, port: int, *args: Any, **options: Any) -> list[Any]:
        found = [host] if host[0].isdigit() or ":" in host else self.answers.pop(0)
        kinds = [socket.AF_INET6 if ":" in one else socket.AF_INET for one in found]
        return [
            (kind, socket.SOCK_STREAM, 6, "", (one, port))
            for kind, one in zip(kinds, found, strict=True)
        ]


@pytest.mark.parametrize(
    "answer",
    [
        *(["127.0.0.1"], ["10.0.0.1"], ["169.254.169.254"], ["0.0.0.0"], ["100.64.0.1"]),
        *(["::1"], ["fe80::1"], ["fd00::1"], ["::ffff:127.0.0.1"], ["::"]),
        *(["2002:7f00:1::"], ["64:ff9b::10.0.0.1"], ["2001:0:1:2:3:4:80ff:fffe"], ["224.0.0.1"]),
        ["93.184.216.34", "192.168.0.1"],  # one that is public hides no other
    ],
)
def test_no_private_address_under_any_of_its_names(
    answer: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "_public_address", judged)
    monkeypatch.setattr(socket, "getaddrinfo", Names(answer))
    with pytest.raises(ValueError, match="is not a public address"):
        get(80)


def test_the_address_that_was_judged_is_the_one_that_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names, asked = Names(["93.184.216.34"], ["127.0.0.1"]), []

    def connect(address: tuple[str, int], **options: Any) -> socket.socket:
        asked.append(address)
        raise OSError("not tried")

    monkeypatch.setattr(fetch, "_public_address", judged)
    monkeypatch.setattr(socket, "getaddrinfo", names)
    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(ValueError, match="not tried"):
        get(80)
    assert asked == [("93.184.216.34", 80)] and names.answers == [["127.0.0.1"]]
