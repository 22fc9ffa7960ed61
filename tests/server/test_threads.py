"""Which threads prepare which rows, and the one that writes what became of them."""

from __future__ import annotations

import os
import threading
from typing import Any

from quire.server.child.threads import PreparingThreads
from quire.server.child.writer import Writer


def chat(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, *parts]}]}


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def test_nobody_is_prepared_behind_rows_that_take_longer() -> None:
    """A batch waits for room in its threads, so that no row that is waited for may be there: not
    a picture of a host either."""
    text, came, fetched = chat(), chat(image("data:image/png;base64,")), chat(image("HTTP://a/b"))
    threads = PreparingThreads()
    rows = [{"prompt": "a"}, text, came, fetched, chat(image("data:,"), image("http://a"))]
    awaited = [threads.of(row, background=False) for row in rows]
    assert awaited[0] is awaited[1] and awaited[3] is awaited[4]
    assert len({id(one) for one in awaited[1:4]}) == 3
    batch = [threads.of(row, background=True) for row in rows]
    assert batch[0] is batch[1] is not batch[2] is batch[3]
    assert not {id(one) for one in awaited} & {id(one) for one in batch}


def test_a_writer_is_behind_until_its_reader_has_what_was_made() -> None:
    reading, writing = os.pipe()
    writer, may_make = Writer(writing), threading.Event()
    writer.send({"kind": "metrics"})
    writer.flush()
    assert not writer.is_behind()

    def made() -> list[dict[str, Any]]:
        may_make.wait(30)
        return [{"kind": "delta", "text": "x" * (1 << 21)}]  # more than a pipe holds

    writer.send(made)
    assert writer.is_behind(), "it is not made yet"
    may_make.set()
    came = os.read(reading, 1 << 16)
    assert writer.is_behind(), "it is not read yet"
    while not came.endswith(b'x"}\n'):
        came = os.read(reading, 1 << 20)
    writer.flush()
    assert not writer.is_behind()
