"""A real server in a thread of the test, with its engine in a process of its own."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from quire.server.engine_life import COMMAND
from quire.server.keys import Keys, hash_of
from quire.server.serve import Serving
from quire.server.services import Settings

KEY, OTHER_KEY = "sk-test-0123456789abcdef", "sk-other-0123456789abcdef"
HEAD = f"Host: localhost\r\nAuthorization: Bearer {KEY}\r\n"


@contextmanager
def serving(
    folder: Path, model: str = "fake", *, keys: tuple[str, ...] = (KEY,), **settings: Any
) -> Iterator[Serving]:
    """A server at a free port, ready; ended and waited for at the end."""
    session = settings.pop("session", "tests.server.fake_session:make")
    command = (*COMMAND, "--session", session) if model.startswith("fake") else COMMAND
    names = settings.pop("names", (model.partition(":")[0],))
    made = Serving(
        Settings(model=model, names=names, data_dir=folder, port=0, **settings),
        Keys(map(hash_of, keys)),
        command=command,
    )
    ready = threading.Event()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            made.run(ready.set)
        except BaseException as error:
            failed.append(error)
            ready.set()
            raise

    thread = threading.Thread(target=run, name="server", daemon=True)
    thread.start()
    if not ready.wait(60) or failed:
        raise RuntimeError(f"the server did not come up: {failed}")
    try:
        yield made
    finally:
        made.end()
        thread.join(30)
    if thread.is_alive() or failed:
        raise RuntimeError(f"the server did not end: {failed}")


def client(server: Serving, key: str = KEY) -> httpx.Client:
    """Without the web's certificates, which take longer to read than most requests."""
    return httpx.Client(
        verify=False,
        base_url=server.address,
        headers={"authorization": f"Bearer {key}"} if key else {},
        timeout=30,
    )


def chat(text: str = "hello", **more: Any) -> dict[str, Any]:
    return {"model": "fake", "messages": [{"role": "user", "content": text}], **more}


def until(done: Any, seconds: float = 20.0) -> None:
    """Wait until `done()`; AssertionError after so long."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise AssertionError(f"still not so after {seconds} s")
        time.sleep(0.04)  # mostly a request is made each time, of server and client alike


def raw(
    server: Serving, data: bytes, seconds: float = 10.0, *, until_closed: bool = False
) -> bytes:
    """What comes back for these bytes: the headers of an answer, or all until the end."""
    with socket.create_connection(server.socket.getsockname(), timeout=seconds) as made:
        made.sendall(data)
        came = b""
        while part := made.recv(1 << 16):
            came += part
            if b"\r\n\r\n" in came and not until_closed:
                break
        return came
