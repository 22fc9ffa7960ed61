"""Uploads in parts over HTTP, and what storage promises: durable when it is acknowledged."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from quire.base.system import write_all
from quire.server import batch_service, file_routes, uploads
from quire.server.batch_job import BatchJob
from quire.server.storage import Storage, second_name
from tests.jobs.power import recording, states
from tests.server.stored import KEYS, Client, chats, served, with_server

DATA = b"0123456789" * 100


async def begin(client: Client, **more: Any) -> httpx.Response:
    body = {
        "filename": "x.jsonl",
        "purpose": "user_data",
        "bytes": len(DATA),
        "mime_type": "application/jsonl",
        **more,
    }
    return await client.http.post("/v1/uploads", json=body)


async def add(client: Client, upload: str, data: bytes) -> httpx.Response:
    return await client.http.post(f"/v1/uploads/{upload}/parts", files={"data": ("part", data)})


async def complete(client: Client, upload: str, parts: Any, **more: Any) -> httpx.Response:
    body = {"part_ids": parts, **more}
    return await client.http.post(f"/v1/uploads/{upload}/complete", json=body)


def num_stored(folder: Path) -> int:
    return sum(path.is_file() for path in (folder / "files").rglob("*"))


@served()
async def test_parts_become_a_file_in_the_order_that_is_asked_for(
    client: Client, tmp_path: Path
) -> None:
    upload = (await begin(client)).json()
    assert upload["status"] == "pending" and upload["expires_at"] > upload["created_at"]
    pieces = [DATA[600:], DATA[:300], DATA[300:600]]
    parts = [(await add(client, upload["id"], piece)).json()["id"] for piece in pieces]
    order = [parts[1], parts[2], parts[0]]
    for wrong in ([], parts[:2], [*order, order[0]], ["part_x"], [7], "x", None):
        assert (await complete(client, upload["id"], wrong)).status_code == 400
    assert (await complete(client, upload["id"], order, md5="0" * 32)).status_code == 400
    md5 = hashlib.md5(DATA).hexdigest()
    done = (await complete(client, upload["id"], order, md5=md5)).json()
    assert done["status"] == "completed" and done["file"]["bytes"] == len(DATA)
    assert await client.content(done["file"]["id"]) == DATA
    assert num_stored(tmp_path) == 1
    assert (await add(client, upload["id"], b"x")).status_code == 400
    assert (await complete(client, upload["id"], order)).status_code == 400


@served(max_file_bytes=10_000, keys=KEYS)
async def test_uploads_are_bounded_and_their_keys_own(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "MOST_PENDING", 3)
    monkeypatch.setattr(uploads, "LARGEST_PART", 2000)
    for wrong in (
        {"bytes": 0},
        {"bytes": "7"},
        {"purpose": "x"},
        {"mime_type": None},
        {"a": 1},
    ):
        assert (await begin(client, **wrong)).status_code == 400
    assert (await begin(client, bytes=20_000)).status_code == 413
    upload = (await begin(client)).json()["id"]
    assert (await add(client, upload, b"x" * 2001)).status_code == 413
    assert (await add(client, upload, b"x" * 1001)).status_code == 400  # more than was said
    assert (await add(client, upload, b"x" * 900)).status_code == 200
    assert (await add(client, upload, b"x" * 101)).status_code == 400
    assert num_stored(tmp_path) == 1
    stranger = {"authorization": f"Bearer {KEYS[1]}"}
    for path in ("parts", "complete", "cancel"):
        found = await client.http.post(f"/v1/uploads/{upload}/{path}", headers=stranger)
        assert found.status_code == 404
    await begin(client)
    await begin(client)
    assert (await begin(client)).status_code == 429
    cancelled = await client.http.post(f"/v1/uploads/{upload}/cancel")
    assert cancelled.json()["status"] == "cancelled" and num_stored(tmp_path) == 0
    assert (await begin(client)).status_code == 200


def test_an_upload_that_is_not_completed_goes(tmp_path: Path) -> None:
    async def begun(client: Client) -> None:
        upload = (await begin(client)).json()["id"]
        await add(client, upload, DATA[:500])
        await add(client, upload, DATA[500:])

    with_server(tmp_path, begun)

    async def later(client: Client) -> None:
        assert num_stored(tmp_path) == 2  # a restart keeps parts that were acknowledged

        def age(connection: Any) -> None:
            connection.execute("UPDATE uploads SET expires_at = 1")

        await client.service.database.write(age)
        async with asyncio.timeout(10):
            while num_stored(tmp_path):  # the server's own sweep may be at it as well
                await client.service.sweep()

    with_server(tmp_path, later)


@served()
async def test_a_full_disk_lets_a_batch_wait_and_go_on(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_service, "AGAIN_SECONDS", 0.02)
    real, num_full, is_full = BatchJob.keep, 0, True

    def keep(self: BatchJob, records: Any) -> Any:
        nonlocal num_full
        if is_full:
            num_full += 1
            raise OSError(errno.ENOSPC, "no space left")
        return real(self, records)

    monkeypatch.setattr(BatchJob, "keep", keep)
    file = (await client.upload(chats(100))).json()["id"]
    batch = (await client.create(file)).json()["id"]
    async with asyncio.timeout(20):
        while num_full < 2 or (found := await client.get(batch))["status_details"] is None:
            await asyncio.sleep(0.005)
    assert "disk" in found["status_details"]
    is_full = False
    ended = await client.ended(batch)
    assert ended["request_counts"] == {"total": 100, "completed": 100, "failed": 0}
    assert ended["status_details"] is None


def test_a_kept_file_survives_a_power_cut(tmp_path: Path) -> None:
    """A cut after every single call that changes a file, with what was not synced lost or torn."""
    with recording(tmp_path) as recorder:
        storage = Storage(tmp_path)
        for _ in range(3):
            name = storage.new_name()
            with storage.receiving(name) as number:
                write_all(number, DATA)
                write_all(number, DATA)
                storage.keep(name, number)
            # From here on its row may be written.
            recorder.mark(str(storage.file(name).relative_to(tmp_path)))
        storage.close()
    num_kept = 0
    for tree, kept, where in states(recorder, 20):
        num_kept += len(kept)
        assert all(tree[path] == DATA + DATA for path in kept), where
    assert num_kept > 100


def test_a_file_system_without_second_names_gets_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: Any, **more: Any) -> None:
        raise OSError(errno.EPERM, "not here")

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "a").write_bytes(DATA)
    second_name(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == DATA

    async def test(client: Client) -> None:
        assert (await client.batch(chats(20)))["status"] == "completed"

    with_server(tmp_path / "data", test)


def test_a_reader_that_takes_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_routes, "SLOW_READER_SECONDS", 0.1)
    path = tmp_path / "x"
    path.write_bytes(b"x" * (1 << 20))

    async def main() -> None:
        response = await file_routes.download(path, "x", "text/plain")
        number, sent = response._number, []

        async def send(message: Any) -> None:
            sent.append(message["type"])
            if len(sent) > 2:
                await asyncio.sleep(60)

        async with asyncio.timeout(10):
            await response({"type": "http"}, None, send)  # type: ignore[arg-type]
        assert sent == ["http.response.start", *["http.response.body"] * 2]
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(number)

    asyncio.run(main())
