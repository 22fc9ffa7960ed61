"""Files over HTTP: kept as they came, bounded, whose they are, and gone when their time is over."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quire.errors import CorruptJob, JobLocked
from quire.openai_api.errors import ApiError
from quire.server import links, receiving
from quire.server.batch_service import BatchService, StoreSettings
from quire.server.multipart import FormReader
from tests.server.stored import Client, chat_line, chats, lines_of, served, with_server

FORM = "multipart/form-data; boundary=B"


def stored_bytes(folder: Path) -> list[bytes]:
    found = [*(folder / "files").rglob("*"), *(folder / "incoming").rglob("*")]
    return [path.read_bytes() for path in found if path.is_file()]


@served()
async def test_a_file_comes_back_as_it_was_sent(client: Client, tmp_path: Path) -> None:
    data = os.urandom(3 << 20) + b"\r\n--B--\r\n"
    file = (await client.upload(data, name="many.jsonl")).json()
    assert file["object"] == "file" and file["status"] == "processed"
    assert file["bytes"] == len(data) and file["filename"] == "many.jsonl"
    assert file["expires_at"] - file["created_at"] == 30 * 86400
    assert (await client.http.get(f"/v1/files/{file['id']}")).json() == file
    found = await client.http.get(f"/v1/files/{file['id']}/content")
    assert found.content == data and found.headers["content-length"] == str(len(data))
    assert stored_bytes(tmp_path) == [data]
    gone = await client.http.delete(f"/v1/files/{file['id']}")
    assert gone.json() == {"id": file["id"], "object": "file", "deleted": True}
    assert (await client.http.get(f"/v1/files/{file['id']}")).status_code == 404
    assert (await client.http.delete(f"/v1/files/{file['id']}")).status_code == 404
    assert stored_bytes(tmp_path) == []


@served()
async def test_files_are_listed_by_purpose_and_in_pages(client: Client) -> None:
    assert (await client.http.get("/v1/files")).json() == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }
    made = []
    for purpose in ("batch", "user_data", "batch"):
        made.append((await client.upload(b"x", purpose=purpose)).json()["id"])
    listed = (await client.http.get("/v1/files")).json()
    assert [file["id"] for file in listed["data"]] == made[::-1]
    only = (await client.http.get("/v1/files?purpose=user_data")).json()
    assert [file["id"] for file in only["data"]] == [made[1]]
    page = (await client.http.get(f"/v1/files?order=asc&limit=1&after={made[0]}")).json()
    assert [file["id"] for file in page["data"]] == [made[1]] and page["has_more"]
    for empty in ("after=", "after=&limit=&order=&purpose="):
        assert (await client.http.get(f"/v1/files?{empty}")).json() == listed
    batch = await client.batch(chats(2))
    outputs = (await client.http.get("/v1/files?purpose=batch_output")).json()["data"]
    assert [file["id"] for file in outputs] == [batch["output_file_id"]]


@pytest.mark.parametrize(
    "name",
    [
        "a\r\nSet-Cookie: x=1.jsonl",
        "\x1b[31mred.jsonl",
        "../../etc/passwd",
        "C:\\x\\y.jsonl",
        "",
        '"',
        "\u202etxt.exe",
    ],
)
@served()
async def test_a_name_is_shown_without_what_could_act(client: Client, name: str) -> None:
    form = (
        b'--B\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--B\r\n'
        b'Content-Disposition: form-data; name="file"; filename="' + name.encode() + b'"\r\n\r\n'
        b"x\r\n--B--\r\n"
    )
    found = await client.http.post("/v1/files", content=form, headers={"content-type": FORM})
    if "\r\n" in name:  # such a header is none
        assert found.status_code in (200, 400)
        assert "set-cookie" not in found.headers
        return
    file = found.json()
    assert found.status_code == 200 and file["filename"].isprintable() and file["filename"]
    assert "/" not in file["filename"] and "\\" not in file["filename"]
    content = await client.http.get(f"/v1/files/{file['id']}/content")
    assert content.headers["content-disposition"].isascii()
    assert '"' not in content.headers["content-disposition"]


@served()
async def test_ids_lead_to_no_path(client: Client, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    for strange in ("..%2f..%2fsecret", "file-%00", "file-" + "0" * 32, "%2e%2e", "x" * 5000):
        for path in (f"/v1/files/{strange}", f"/v1/files/{strange}/content"):
            assert (await client.http.get(path)).status_code == 404
        assert (await client.http.delete(f"/v1/files/{strange}")).status_code == 404
        assert (await client.http.get(f"/v1/batches/{strange}")).status_code == 404
        assert (await client.http.post(f"/v1/batches/{strange}/cancel")).status_code == 404


@served()
async def test_what_nobody_unpacks_is_refused(client: Client) -> None:
    packed = {"content-encoding": "gzip"}
    assert (await client.upload(b"{}\n", headers=packed)).status_code == 415
    assert (await client.upload(b"{}\n", headers={"content-encoding": "identity"})).is_success


@served()
async def test_a_report_that_nobody_fetched_goes(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = await client.batch(lines_of(chat_line(1, "x")))
    assert (await client.http.post(f"/v1/batches/{batch['id']}/report")).is_success
    assert [*(tmp_path / "incoming").iterdir()]
    monkeypatch.setattr(links, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + 61))
    await client.service.sweep()
    assert not [*(tmp_path / "incoming").iterdir()]


def part(name: str, value: bytes = b"x", more: bytes = b"") -> bytes:
    head = b'--B\r\nContent-Disposition: form-data; name="' + name.encode() + b'"' + more
    return head + b"\r\n\r\n" + value + b"\r\n"


FILE = part("file", b"x", b'; filename="a.jsonl"')
END = b"--B--\r\n"


@pytest.mark.parametrize(
    ("content_type", "body", "status"),
    [
        ("multipart/form-data", FILE + END, 400),
        ("multipart/form-data; boundary=" + "B" * 300, FILE + END, 400),
        ("application/json", b"{}", 415),
        ("", b"", 415),
        (FORM, FILE + FILE + part("purpose", b"batch") + END, 400),
        (FORM, part("x") * 10_000 + END, 400),
        (FORM, part("purpose", b"batch") * 20 + END, 400),
        (FORM, part("purpose", b"b" * 5000) + FILE + END, 400),
        (FORM, part("purpose", b"batch", b"; x=" + b"y" * 9000) + FILE + END, 400),
        (FORM, part("purpose", b"batch") + END, 400),
        (FORM, part("purpose", b"fine-tune") + FILE + END, 400),
        (FORM, FILE + END, 400),
        (FORM, part("purpose", b"batch") + FILE, 400),
        (FORM, b"garbage", 400),
        (FORM, b"", 400),
        (FORM, part("purpose", b"batch") + part("b", b"x", b'; filename="b"') + FILE + END, 400),
        (FORM, part("purpose", b"batch") + part("expires_after[seconds]", b"5") + FILE + END, 400),
        (
            FORM,
            part("purpose", b"batch")
            + part("expires_after[anchor]", b"created_at")
            + part("expires_after[seconds]", b"3599")
            + FILE
            + END,
            400,
        ),
        (
            FORM,
            part("purpose", b"batch")
            + part("expires_after[anchor]", b"created_at")
            + part("expires_after[seconds]", b"3600")
            + FILE
            + END,
            200,
        ),
        (FORM, FILE + part("purpose", b"batch") + END, 200),  # the order is the client's
    ],
)
@served()
async def test_forms_that_are_none_of_ours(
    client: Client, tmp_path: Path, content_type: str, body: bytes, status: int
) -> None:
    headers = {"content-type": content_type} if content_type else {}
    found = await client.http.post("/v1/files", content=body, headers=headers)
    assert found.status_code == status, found.text
    assert len(stored_bytes(tmp_path)) == (status == 200)
    if status != 200:
        assert set(found.json()["error"]) == {"message", "type", "param", "code"}


def test_a_form_cut_anywhere_into_pieces_reads_the_same(caplog: pytest.LogCaptureFixture) -> None:
    body = part("purpose", b"batch") + part("file", b"a\r\n--Bx\r\n-", b'; filename="f"') + END
    for size in (1, 2, 3, 7, 64, 1000):
        reader = FormReader(FORM, file="file", known=("purpose",))
        came = b""
        for at in range(0, len(body), size):
            came += b"".join(reader.feed(body[at : at + size]))
        assert came == b"a\r\n--Bx\r\n-"
        assert reader.finish().fields == {"purpose": "batch"}
    for end in range(len(body) - 3):
        reader = FormReader(FORM, file="file", known=("purpose",))
        with pytest.raises(ApiError):
            reader.feed(body[:end])
            reader.finish()
    with pytest.raises(ApiError):
        FormReader(FORM, file="file", known=("purpose",)).feed(b"no form at all")
    assert not caplog.records  # a client fills no log


@served(max_file_bytes=100_000)
async def test_a_file_over_the_limit_is_refused_while_it_comes(
    client: Client, tmp_path: Path
) -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield part("purpose", b"batch") + FILE[:-2]
        while True:
            yield b"y" * 65536

    assert (await client.upload(b"x" * 1000)).status_code == 200
    assert (await client.upload(b"x" * (1 << 20))).status_code == 413
    headers = {"content-type": FORM}
    found = await client.http.post("/v1/files", content=endless(), headers=headers)
    assert found.status_code == 413 and found.json()["error"]["code"] == "file_too_large"
    assert len(stored_bytes(tmp_path)) == 1


@served(quota_bytes=100_000)
async def test_the_quota_is_the_keys_own_and_never_retried(client: Client, tmp_path: Path) -> None:
    assert (await client.upload(b"x" * 60_000)).status_code == 200
    found = await client.upload(b"x" * 60_000)
    assert found.status_code == 507 and found.headers["x-should-retry"] == "false"
    together = await asyncio.gather(*(client.upload(b"x" * 30_000) for _ in range(5)))
    assert sorted(each.status_code for each in together) == [200, 507, 507, 507, 507]
    [file, *_] = (await client.http.get("/v1/files")).json()["data"]
    await client.http.delete(f"/v1/files/{file['id']}")
    assert (await client.upload(b"x" * 30_000)).status_code == 200
    assert len(stored_bytes(tmp_path)) == 2


@served()
async def test_a_full_disk_is_507(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client.service.storage, "free_bytes", lambda: 10)
    assert (await client.upload(b"x" * 1000)).status_code == 507
    assert (await client.upload(b"x" * 10)).status_code == 200


@served()
async def test_a_disk_that_is_full_for_the_database_is_507(client: Client, tmp_path: Path) -> None:
    database = client.service.database

    def limit(pages: int) -> None:
        work = database._writing.execute
        database._writer.submit(work, f"PRAGMA max_page_count = {pages}").result()

    limit(1)  # none is added
    codes = [(await client.upload(b"x")).status_code for _ in range(60)]
    assert set(codes) == {200, 507} and codes[-1] == 507
    limit(1 << 20)
    assert (await client.upload(b"x")).status_code == 200
    assert len(stored_bytes(tmp_path)) == codes.count(200) + 1


@served()
async def test_a_database_that_another_program_holds_is_503(client: Client, tmp_path: Path) -> None:
    database = client.service.database
    database._writer.submit(database._writing.execute, "PRAGMA busy_timeout = 50").result()
    with closing(sqlite3.connect(tmp_path / "server.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        held = await client.upload(b"x")
        assert held.status_code == 503 and "another program" in held.text
        assert "x-should-retry" not in held.headers
        assert (await client.http.get("/v1/files")).status_code == 200
        other.execute("ROLLBACK")
    assert (await client.upload(b"x")).status_code == 200
    assert len(stored_bytes(tmp_path)) == 1


@served()
async def test_what_makes_room_is_done_on_a_full_disk(client: Client, tmp_path: Path) -> None:
    """It has room of its own, which is kept anew once something was removed."""
    database, reserve = client.service.database, tmp_path / "server.sqlite.reserve"
    assert reserve.stat().st_size == 1 << 20

    seen = list[bool]()

    def work(connection: sqlite3.Connection) -> None:
        seen.append(reserve.exists())
        connection.execute(f"PRAGMA max_page_count = {1 if seen[-1] else 1 << 20}")
        connection.execute("CREATE TABLE more (x)")

    with pytest.raises(ApiError, match="disk is full"):
        await database.write(work)
    await database.write(work, frees=True)
    assert seen == [True, True, False]
    file = (await client.upload(b"x")).json()
    assert (await client.http.delete(f"/v1/files/{file['id']}")).status_code == 200
    assert reserve.exists()


@served()
async def test_a_disk_that_fills_while_it_is_written_to_is_507(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = await client.batch(lines_of(chat_line(1, "x")))
    before = stored_bytes(tmp_path)

    def no_room(*given: Any, **more: Any) -> None:
        Path("/dev/full").write_bytes(b"x")

    monkeypatch.setattr(receiving, "write_all", no_room)
    monkeypatch.setattr("quire.report.page.write_file", no_room)
    for refused in (
        await client.upload(b"x"),
        await client.http.post(f"/v1/batches/{batch['id']}/report"),
    ):
        assert refused.status_code == 507 and "disk is full" in refused.text
    assert stored_bytes(tmp_path) == before


@served()
async def test_an_upload_that_crawls_is_ended(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "GRACE", 0.2)
    monkeypatch.setattr(receiving, "LONGEST_SILENCE", 0.5)

    async def slow(pause: float) -> AsyncIterator[bytes]:
        yield part("purpose", b"batch") + FILE[:-2]
        for _ in range(100):
            await asyncio.sleep(pause)
            yield b"y" * 100

    for pause in (0.05, 5.0):
        headers = {"content-type": FORM}
        found = await client.http.post("/v1/files", content=slow(pause), headers=headers)
        assert found.status_code == 408 and found.headers["x-should-retry"] == "false"
    assert stored_bytes(tmp_path) == []


@served()
async def test_a_live_batchs_input_stays(client: Client, tmp_path: Path) -> None:
    engine = client.engine
    engine.open.clear()
    file = (await client.upload(chats(3))).json()["id"]
    batch = (await client.create(file)).json()
    found = await client.http.delete(f"/v1/files/{file}")
    assert found.status_code == 400 and found.json()["error"]["code"] == "file_in_use"
    await expire(client, file)
    assert (await client.http.get(f"/v1/files/{file}")).status_code == 404
    engine.open.set()
    assert (await client.ended(batch["id"]))["status"] == "completed"
    await client.service.sweep()
    assert len(stored_bytes(tmp_path)) == 1  # the output


async def expire(client: Client, file_id: str) -> None:
    """Let the file's time be over, and what is over be removed."""

    def work(connection: Any) -> None:
        now = int(time.time())
        connection.execute("UPDATE files SET expires_at = ? WHERE id = ?", (now, file_id))

    await client.service.database.write(work)
    await client.service.sweep()


@served()
async def test_a_file_goes_when_its_time_is_over(client: Client, tmp_path: Path) -> None:
    keep = (await client.upload(b"keep", purpose="user_data")).json()
    assert keep["expires_at"] is None
    gone = (await client.upload(b"gone")).json()["id"]
    await expire(client, gone)
    assert (await client.http.get(f"/v1/files/{gone}")).status_code == 404
    assert stored_bytes(tmp_path) == [b"keep"]


def test_what_a_kill_left_behind_goes_at_the_next_start(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.upload(b"kept")

    with_server(tmp_path, test)
    name = "ab" + "0" * 30
    (tmp_path / "incoming" / name).write_bytes(b"half")
    (tmp_path / "files" / "ab").mkdir(exist_ok=True)
    (tmp_path / "files" / "ab" / name).write_bytes(b"no row")
    (tmp_path / "batches" / name).mkdir()

    async def look(client: Client) -> None:
        assert len((await client.http.get("/v1/files")).json()["data"]) == 1

    with_server(tmp_path, look)
    assert stored_bytes(tmp_path) == [b"kept"]
    assert list((tmp_path / "batches").iterdir()) == []


def test_a_folder_has_one_server(tmp_path: Path) -> None:
    service = BatchService(StoreSettings(tmp_path))
    try:
        with pytest.raises(JobLocked, match="stop it, or start this server with another --data"):
            BatchService(StoreSettings(tmp_path))
    finally:
        service.close()
        service.close()
    BatchService(StoreSettings(tmp_path)).close()
    assert (tmp_path / "server.sqlite").stat().st_mode & 0o077 == 0
    (tmp_path / "server.sqlite").write_bytes(b"something else" * 1000)
    with pytest.raises(CorruptJob):
        BatchService(StoreSettings(tmp_path))


@served()
async def test_a_read_goes_on_though_the_file_is_deleted(client: Client) -> None:
    data = os.urandom(2 << 20)
    file = (await client.upload(data)).json()["id"]
    async with client.http.stream("GET", f"/v1/files/{file}/content") as found:
        await client.http.delete(f"/v1/files/{file}")
        assert hashlib.sha256(await found.aread()).digest() == hashlib.sha256(data).digest()
