"""Which threads prepare which rows, and the one that writes what became of them."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from threading import Event
from typing import Any

from quire.replicas.board import Board
from quire.sampling_params import SamplingParams
from quire.server.child.adapters import ServedAdapters
from quire.server.child.serving import ServingEngine
from quire.server.child.threads import PreparingThreads, Taken, _Pool
from quire.server.child.writer import Writer
from quire.session.engine_thread import Submission
from tests.server.fake_session import make
from tests.server.serving import until


def chat(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, *parts]}]}


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


class Preparing:
    """What was prepared by which threads, for an engine that has room when it is let."""

    def __init__(self) -> None:
        self.by: dict[str, str] = {}  # the name of each row -> of its thread
        self.groups: list[list[str]] = []
        self.has_room = threading.Event()
        self.threads = PreparingThreads(self._prepare, self._wait_for_room)

    def _wait_for_room(self) -> int:
        assert self.has_room.wait(30)
        return 5

    def _prepare(self, some: Sequence[Taken]) -> None:
        names = [asked.request_id for _, asked in some]
        thread = threading.current_thread().name.partition("_")[0]
        self.by |= dict.fromkeys(names, thread)
        self.groups.append(names)

    def add(self, background: bool, **rows: dict[str, Any]) -> None:
        """The first letter of a row's name is its tenant's."""
        params, lane = SamplingParams(), {"background": background}
        self.threads.prepare(
            [
                (row, Submission(None, params, request_id=name, tenant=name[0], **lane))
                for name, row in rows.items()
            ]
        )


def test_nobody_is_prepared_behind_rows_that_take_longer() -> None:
    """A batch waits for room in its threads, so that no row that is waited for may be there: not
    a picture of a host either."""
    made = Preparing()
    here, far = image("data:image/png;base64,"), image("HTTP://a/b")
    made.add(True, later={"prompt": "a"}, seen_later=chat(here))
    made.add(False, prompt={"prompt": "a"}, text=chat(), here=chat(here), far=chat(far))
    made.add(False, both=chat(here, far))
    until(lambda: len(made.by) == 5)
    assert made.by["prompt"] == made.by["text"] and made.by["far"] == made.by["both"]
    made.has_room.set()
    until(lambda: len(made.by) == 7)
    kinds = [made.by[name] for name in ("text", "here", "far", "later", "seen_later")]
    assert len(set(kinds)) == 5


def test_rows_of_a_batch_are_prepared_together_as_far_as_there_is_room() -> None:
    made = Preparing()
    names = [f"row{i}" for i in range(23)]
    made.add(True, **{name: {"prompt": name} for name in names})
    made.has_room.set()
    until(lambda: len(made.by) == 23)
    assert sorted(map(len, made.groups)) == [3, 5, 5, 5, 5]
    assert all(group == sorted(group, key=names.index) for group in made.groups)


def test_tenants_have_equal_turns_at_the_threads() -> None:
    made = Preparing()
    made.add(True, **{name: {"prompt": name} for name in ("a1", "a2", "a3", "a4", "b1", "b2")})
    made.has_room.set()
    until(lambda: len(made.by) == 6)
    assert sorted(made.groups, key=len) == [["a4"], ["a1", "b1", "a2", "b2", "a3"]]


def test_tenants_have_equal_turns_at_a_pool_of_threads() -> None:
    came, may_go_on = list[str](), Event()

    def prepare(one: Taken) -> None:
        assert may_go_on.wait(30)
        came.append(one[1].request_id)

    pool = _Pool(1, "test", prepare)
    for name in ("a1", "a2", "a3", "b1", "c1"):
        pool.add(({}, Submission(None, SamplingParams(), request_id=name, tenant=name[0])))
    may_go_on.set()
    until(lambda: len(came) == 5)
    assert came in (["a1", "b1", "c1", "a2", "a3"], ["a1", "a2", "b1", "c1", "a3"])


def test_one_tenant_does_not_wait_behind_all_rows_of_another() -> None:
    reading, writing = os.pipe()
    session, writer = make("fake:rows=1:delay=0.01", {}), Writer(writing)
    adapters = ServedAdapters(session, ["fake"], {}, {})
    engine = ServingEngine(session, Board.create(), writer, adapters)
    asked: dict[str, Any] = {"prompt": "a", "params": {"max_tokens": 2}}
    rows = [{**asked, "id": i, "tenant": "a" if i < 40 else "b"} for i in range(41)]
    with os.fdopen(reading, "rb") as written:
        try:
            engine.take({"kind": "ask", "rows": rows[:40]})
            until(lambda: len(engine._engine.in_engine) > 20)
            engine.take({"kind": "ask", "rows": rows[40:]})
            came: list[int] = []
            while 40 not in came:
                message = json.loads(written.readline())
                came += [number for number, _ in message.get("rows", ())]
            assert len(came) < 30
        finally:
            engine._engine.close()
            writer.flush()


def test_rows_that_are_given_up_before_are_not_prepared() -> None:
    _, writing = os.pipe()
    session, has_room = make("fake", {}), Event()
    adapters = ServedAdapters(session, ["fake"], {}, {})
    engine = ServingEngine(session, Board.create(), Writer(writing), adapters)
    prepare, prepared = engine._preparing.prepare_each, list[int]()
    engine._threads._wait_for_room = lambda: 64 if has_room.wait(30) else 0  # type: ignore[method-assign]

    def prepare_each(rows: Sequence[dict[str, Any]]) -> Any:
        prepared.extend(row["id"] for row in rows)
        return prepare(rows)

    engine._preparing.prepare_each = prepare_each  # type: ignore[method-assign]
    rows = [{"id": i, "lane": "batch", "prompt": "a", "params": {}} for i in range(10)]
    try:
        engine.take({"kind": "ask", "rows": rows})
        engine.take({"kind": "abort", "ids": list(range(9))})
        has_room.set()
        until(lambda: not engine._asked)
        assert prepared == [9]
    finally:
        engine._engine.close()


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
