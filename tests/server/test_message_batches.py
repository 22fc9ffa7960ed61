"""Anthropic's Message Batches over HTTP: the same batches, in other words."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from quire.server import message_batch_input, message_batch_routes
from quire.server.database import VERSION, Database
from quire.server.threads import run_uncancelled
from tests.server.stored import KEYS, MODEL, Client, FakeEngine, chats, served, serving

BATCHES = "/v1/messages/batches"
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def asked(custom_id: Any, text: str, **params: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    body = {"model": MODEL, "max_tokens": 9, "messages": messages, **params}
    return {"custom_id": custom_id, "params": body}


async def created(client: Client, *requests: dict[str, Any]) -> dict[str, Any]:
    body = json.dumps({"requests": requests}, indent=1)  # over several lines
    made = await client.http.post(BATCHES, content=body)
    assert made.status_code == 200, made.text
    return made.json()


async def found(client: Client, batch: dict[str, Any]) -> dict[str, Any]:
    return (await client.http.get(f"{BATCHES}/{batch['id']}")).json()


async def ended(client: Client, batch: dict[str, Any]) -> dict[str, Any]:
    async with asyncio.timeout(20):
        while (now := await found(client, batch))["processing_status"] != "ended":
            await asyncio.sleep(0.01)
        return now


async def results(client: Client, batch: dict[str, Any]) -> dict[str, dict[str, Any]]:
    got = await client.http.get(batch["results_url"])
    assert got.status_code == 200 and got.headers["content-type"] == "application/x-jsonl"
    lines = [json.loads(line) for line in got.text.splitlines()]
    return {line["custom_id"]: line["result"] for line in lines}


def counts(batch: dict[str, Any]) -> dict[str, int]:
    return {name: count for name, count in batch["request_counts"].items() if count}


@served()
async def test_each_request_has_its_result(client: Client) -> None:
    wrong = [
        asked("refused", "<bad>"),
        asked("failed", "<nan>"),
        asked("unknown", "x", temprature=1),
        {"custom_id": "other", "params": {"model": "claude", "max_tokens": 1, "messages": []}},
        asked("streamed", "x", stream=True),
    ]
    good = [asked(f"good-{i}", f"row {i}\nof several") for i in range(3)]
    made = await created(client, *good, *wrong)
    assert made["id"].startswith("msgbatch_") and made["type"] == "message_batch"
    assert made["processing_status"] == "in_progress" and counts(made) == {"processing": 8}
    assert made["results_url"] is None and made["ended_at"] is None
    batch = await ended(client, made)
    assert counts(batch) == {"succeeded": 3, "errored": 5}
    for at in ("created_at", "expires_at", "ended_at"):
        assert TIME.fullmatch(batch[at])
    assert batch["cancel_initiated_at"] is None and batch["archived_at"] is None
    path = f"{BATCHES}/{batch['id']}"
    assert batch["results_url"] == f"http://127.0.0.1{path}/results"
    for said, address in (
        (("https", "llm.example:8443", "/quire/"), "https://llm.example:8443/quire"),
        (("https, http", "llm.example, inner", "/a/b, /c"), "https://llm.example/a/b"),
        (("file", "evil/x", "//evil"), "http://127.0.0.1"),
    ):
        headers = dict(zip(("proto", "host", "prefix"), said, strict=True))
        headers = {f"x-forwarded-{name}": value for name, value in headers.items()}
        told = (await client.http.get(path, headers=headers)).json()
        assert told["results_url"] == f"{address}{path}/results"
    lines = await results(client, batch)
    assert list(lines) == [one["custom_id"] for one in (*good, *wrong)]
    message = lines["good-1"]["message"]
    assert message["type"] == "message" and message["id"].startswith("msg_")
    assert message["content"][0]["text"].endswith("row 1\nof several")
    assert message["usage"]["service_tier"] == "batch"
    for one in wrong:
        result = lines[one["custom_id"]]
        assert result["type"] == "errored" and result["error"]["type"] == "error"
        assert result["error"]["request_id"].startswith("req_")
    kinds = {name: lines[name]["error"]["error"]["type"] for name in ("refused", "failed", "other")}
    wanted = ("invalid_request_error", "api_error", "not_found_error")
    assert tuple(kinds.values()) == wanted
    assert "temperature" in lines["unknown"]["error"]["error"]["message"]
    assert client.engine.lanes == {"batch"}
    as_others_see_it = await client.get(batch["id"])
    assert as_others_see_it["endpoint"] == "/v1/messages"
    assert as_others_see_it["request_counts"] == {"total": 8, "completed": 3, "failed": 5}


@served(lambda: FakeEngine(seconds=30.0))
async def test_a_cancelled_batch_tells_each_request(client: Client) -> None:
    batch = await created(client, *(asked(str(i), "x") for i in range(5)))
    await client.until(batch["id"], "in_progress")
    early = await client.http.delete(f"{BATCHES}/{batch['id']}")
    assert early.status_code == 400 and "cancel" in early.json()["error"]["message"]
    assert (await client.http.get(f"{BATCHES}/{batch['id']}/results")).status_code == 404
    cancel = f"{BATCHES}/{batch['id']}/cancel"
    told = (await client.http.post(cancel)).json()
    assert told["processing_status"] == "canceling" and counts(told) == {"processing": 5}
    assert TIME.fullmatch(told["cancel_initiated_at"])
    batch = await ended(client, batch)
    assert counts(batch) == {"canceled": 5}
    assert set(map(str, (await results(client, batch)).values())) == {"{'type': 'canceled'}"}
    assert (await client.http.post(cancel)).json()["error"]["type"] == "invalid_request_error"


@served()
async def test_a_batch_cancelled_before_the_engine_is_ready_tells_each(client: Client) -> None:
    client.engine.state = "loading"
    batch = await created(client, asked("a", "x"), asked("b", "x"))
    await client.http.post(f"{BATCHES}/{batch['id']}/cancel")
    batch = await ended(client, batch)
    assert counts(batch) == {"canceled": 2}
    assert await results(client, batch) == dict.fromkeys("ab", {"type": "canceled"})


@served(lambda: FakeEngine(seconds=30.0))
async def test_what_takes_too_long_expires(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_batch_routes, "LIFE", 0)
    batch = await ended(client, await created(client, asked("a", "x")))
    assert counts(batch) == {"expired": 1}
    assert await results(client, batch) == {"a": {"type": "expired"}}


@served()
async def test_a_deleted_batch_leaves_nothing(client: Client, tmp_path: Path) -> None:
    kept = await client.upload(chats(1))
    batch = await ended(client, await created(client, asked("a", "secret words")))
    told = (await client.http.delete(f"{BATCHES}/{batch['id']}")).json()
    assert told == {"id": batch["id"], "type": "message_batch_deleted"}
    for path in ("", "/results"):
        gone = await client.http.get(f"{BATCHES}/{batch['id']}{path}")
        assert gone.status_code == 404 and gone.json()["error"]["type"] == "not_found_error"
    listed = (await client.http.get("/v1/files")).json()["data"]
    assert [file["id"] for file in listed] == [kept.json()["id"]]
    folders = ("files", "batches", "incoming")
    left = [path for name in folders for path in (tmp_path / name).rglob("*") if path.is_file()]
    assert len(left) == 1 and b"secret" not in left[0].read_bytes()


@served()
async def test_lists_are_paged_both_ways(client: Client) -> None:
    made = [(await created(client, asked("a", "x")))["id"] for _ in range(5)]
    await client.batch(chats(1))  # no batch of messages
    newest = made[::-1]

    async def page(**query: Any) -> tuple[list[str], bool]:
        got = (await client.http.get(BATCHES, params=query)).json()
        ids = [batch["id"] for batch in got["data"]]
        assert (got["first_id"], got["last_id"]) == ((ids[0], ids[-1]) if ids else (None, None))
        return ids, got["has_more"]

    assert await page() == (newest, False)
    assert await page(limit=2) == (newest[:2], True)
    assert await page(limit=2, after_id=newest[1]) == (newest[2:4], True)
    assert await page(limit=2, after_id=newest[3]) == (newest[4:], False)
    assert await page(limit=2, before_id=newest[3]) == (newest[1:3], True)
    assert await page(limit=3, before_id=newest[3]) == (newest[:3], False)
    assert await page(before_id=newest[0]) == ([], False)
    assert await page(limit=2, after_id="", before_id="") == (newest[:2], True)
    for query in ("limit=0", "limit=1001", "after_id=x&before_id=y"):
        assert (await client.http.get(f"{BATCHES}?{query}")).status_code == 400
    missing = await client.http.get(f"{BATCHES}?before_id=msgbatch_x")
    assert missing.status_code == 404 and "before_id" in missing.json()["error"]["message"]


@served()
async def test_bodies_that_are_no_batch(client: Client, tmp_path: Path) -> None:
    one = asked("a", "x")
    deep = b'{"requests":[{"custom_id":"a","params":{"x":' + b"[" * 200 + b"]" * 200 + b"}}]}"
    bodies = [
        ({}, "requests"),
        ([], "requests"),
        ({"requests": []}, "1 to 100,000"),
        ({"requests": [one], "more": 1}, "more"),
        ({"requests": [one, {**one, "x": 1}]}, "[1]"),
        ({"requests": [{"custom_id": "a"}]}, "params"),
        ({"requests": [asked(7, "x")]}, "custom_id"),
        ({"requests": [one, asked("a b", "x")]}, "requests[1].custom_id"),
        ({"requests": [asked("a" * 65, "x")]}, "1 to 64"),
        ({"requests": [one, one]}, "earlier"),
        ({"requests": [{"custom_id": "a", "params": [1]}]}, "requests[0].params"),
        (deep, "128 levels"),
        (b'{"requests":[{"custom_id":"a","params":{"x":"\xff"}}]}', "UTF-8"),
        (b'{"requests":[{"custom_id":"a","params":{"x":NaN}}]}', "JSON"),
        (b"", "JSON"),
    ]
    for body, words in bodies:
        given = {"content": body} if isinstance(body, bytes) else {"json": body}
        got = await client.http.post(BATCHES, **given)
        assert got.status_code == 400, (body, got.text)
        error = got.json()["error"]
        assert error["type"] == "invalid_request_error" and words in error["message"], error
    text = await client.http.post(BATCHES, content=b"x", headers={"content-type": "text/plain"})
    assert text.status_code == 415
    assert (await client.http.get(BATCHES)).json()["data"] == []
    for folder in ("files", "incoming"):
        assert not [path for path in (tmp_path / folder).rglob("*") if path.is_file()]


@served()
async def test_a_body_has_its_bounds(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_batch_input, "MOST_BODY", 1 << 17)
    large = await client.http.post(BATCHES, json={"requests": [asked("a", "x" * (1 << 18))]})
    assert large.status_code == 413 and large.json()["error"]["type"] == "request_too_large"
    monkeypatch.setattr(message_batch_input, "MOST_REQUESTS", 2)
    three = ",".join(json.dumps(asked(i, "x")) for i in "abc")
    for rest in ("]}", ", what comes behind the third is not read"):
        content, kind = f'{{"requests": [{three}{rest}', {"content-type": "application/json"}
        many = await client.http.post(BATCHES, content=content, headers=kind)
        assert many.status_code == 400 and "1 to 2 of them" in many.json()["error"]["message"]


def test_keys_are_apart(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, keys=KEYS) as client:
            batch = await ended(client, await created(client, asked("a", "x")))
            other = {"authorization": f"Bearer {KEYS[1]}"}
            path = f"{BATCHES}/{batch['id']}"
            for method, end in (("GET", ""), ("GET", "/results"), ("POST", "/cancel")):
                got = await client.http.request(method, f"{path}{end}", headers=other)
                assert got.status_code == 404, (method, end)
            assert (await client.http.delete(path, headers=other)).status_code == 404
            assert (await client.http.get(BATCHES, headers=other)).json()["data"] == []
            # A batch of chats is none of messages, whoever asks.
            chat = await client.batch(chats(1))
            assert (await client.http.delete(f"{BATCHES}/{chat['id']}")).status_code == 404

    asyncio.run(main())


def test_the_next_start_goes_on_with_the_same_bytes(tmp_path: Path) -> None:
    requests = [asked(str(i), f"row {i}", temperature=1.0) for i in range(40)]

    async def whole() -> str:
        async with serving(tmp_path / "whole") as client:
            batch = await ended(client, await created(client, *requests))
            return (await client.http.get(batch["results_url"])).text

    async def cut() -> str:
        slow = FakeEngine(seconds=0.05, capacity=2)
        async with serving(tmp_path / "cut", slow) as client:
            batch = await created(client, *requests)
            await client.until(batch["id"], "in_progress")
            await asyncio.sleep(0.1)
        async with serving(tmp_path / "cut") as client:
            batch = await ended(client, batch)
            assert counts(batch) == {"succeeded": 40}
            return (await client.http.get(batch["results_url"])).text

    def without_ids(text: str) -> str:
        return re.sub(r"msg_[0-9a-f]+", "", text)

    assert without_ids(asyncio.run(cut())) == without_ids(asyncio.run(whole()))


def test_files_are_not_closed_while_a_thread_writes_them() -> None:
    held = threading.Event()

    async def main() -> None:
        writing = asyncio.create_task(run_uncancelled(held.wait, 20))
        await asyncio.sleep(0.01)
        writing.cancel()
        done, _ = await asyncio.wait((writing,), timeout=0.05)
        assert not done
        held.set()
        await asyncio.wait((writing,))
        assert writing.cancelled()

    asyncio.run(main())


def test_a_database_of_the_version_before_is_brought_up(tmp_path: Path) -> None:
    path = tmp_path / "server.sqlite"
    Database(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE batches DROP COLUMN causes")
        connection.execute("PRAGMA user_version = 1")
    Database(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("SELECT causes FROM batches")
        assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)
