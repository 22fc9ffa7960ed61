"""Batches over HTTP: states, counts, files, and what becomes of lines that cannot be answered."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from quire.jobs.input.files import find_files
from quire.jobs.input.work import Selection, Setting, Work
from quire.jobs.store.store import Manifest, read_results
from quire.server import batch_dispatch, batch_service, batches
from quire.server.batch_input import line_ids
from quire.server.batch_job import LineAsking
from tests.server.stored import (
    COMPLETIONS,
    KEYS,
    Client,
    FakeEngine,
    chat_line,
    chats,
    lines_of,
    served,
    serving,
)


def counts(batch: dict[str, Any]) -> tuple[int, int, int]:
    found = batch["request_counts"]
    return found["total"], found["completed"], found["failed"]


@served()
async def test_a_batch_is_answered_line_by_line(client: Client) -> None:
    file = (await client.upload(chats(300))).json()
    created = (await client.create(file["id"], metadata={"a": "b"})).json()
    assert created["status"] == "validating" and counts(created) == (0, 0, 0)
    batch = await client.ended(created["id"])
    assert batch["status"] == "completed" and counts(batch) == (300, 300, 0)
    assert batch["error_file_id"] is None and batch["errors"] is None
    assert batch["metadata"] == {"a": "b"} and batch["model"] == "fake"
    passed = ("created", "in_progress", "finalizing", "completed")
    times = [batch[f"{name}_at"] for name in passed]
    assert None not in times and times == sorted(times)
    others = ("failed", "expired", "cancelling", "cancelled")
    assert [batch[f"{name}_at"] for name in others] == [None] * 4
    usage = batch["usage"]
    assert usage["output_tokens"] == 900 and usage["input_tokens_details"]["cached_tokens"]
    assert usage["total_tokens"] == usage["input_tokens"] + 900
    lines = await client.lines(batch["output_file_id"])
    assert [line["custom_id"] for line in lines] == [str(i) for i in range(300)]
    assert len({line["id"] for line in lines}) == 300
    assert lines[7]["error"] is None and lines[7]["response"]["status_code"] == 200
    body = lines[7]["response"]["body"]
    assert body["object"] == "chat.completion" and body["model"] == "fake"
    assert body["choices"][0]["message"]["content"].endswith("row 7")
    cached = body["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == 0  # it would be another after a kill
    assert client.engine.lanes == {"batch"}
    assert client.engine.most_held <= max(64, 6 * client.engine.capacity)


@served()
async def test_a_bad_body_costs_its_line(client: Client) -> None:
    wrong = [
        chat_line("refused", "<bad>"),
        chat_line("failed", "<nan>"),
        chat_line("unknown field", "x", temprature=1),
        chat_line("other model", "x") | {"body": {"model": "gpt-9", "messages": []}},
        {"custom_id": "no body", "method": "POST", "url": "/v1/chat/completions"},
        chat_line("method", "x") | {"method": "GET"},
        chat_line("stream", "x", stream=True),
    ]
    batch = await client.batch(lines_of(chat_line("good", "x"), *wrong))
    assert batch["status"] == "completed" and counts(batch) == (8, 1, 7)
    [line] = await client.lines(batch["output_file_id"])
    assert line["custom_id"] == "good"
    errors = {e["custom_id"]: e for e in await client.lines(batch["error_file_id"])}
    assert list(errors) == [line["custom_id"] for line in wrong]
    failed = errors.pop("failed")
    assert failed["response"] is None
    assert failed["error"] == {"code": "nan_logits", "message": "the model gave NaN"}
    assert errors["other model"]["response"]["status_code"] == 404
    for line in errors.values():
        assert line["error"] is None and line["response"]["request_id"].startswith("req_")
        assert set(line["response"]["body"]["error"]) == {"message", "type", "param", "code"}


@served()
async def test_what_nobody_foresaw_costs_its_line(client: Client) -> None:
    batch = await client.batch(lines_of(chat_line("good", "x"), chat_line("odd", "<fault> secret")))
    assert batch["status"] == "completed" and counts(batch) == (2, 1, 1)
    [line] = await client.lines(batch["error_file_id"])
    assert line["custom_id"] == "odd" and line["error"]["code"] == "row_error"
    assert "LookupError" in line["error"]["message"] and "secret" not in line["error"]["message"]


@served()
async def test_a_batch_in_which_every_line_failed_says_so(client: Client) -> None:
    batch = await client.batch(chats(5, "<bad> {}"))
    assert batch["status"] == "completed" and counts(batch) == (5, 0, 5)
    assert batch["output_file_id"] is None
    assert [error["code"] for error in batch["errors"]["data"]] == ["all_requests_failed"]


@served()
async def test_lines_that_cannot_be_matched_fail_the_batch_all_at_once(client: Client) -> None:
    good = chat_line("a", "x")
    data = lines_of(good) + b"not json\n\n[1]\n"
    data += lines_of(good, {**good, "custom_id": "b", "url": COMPLETIONS})
    data += lines_of({k: v for k, v in good.items() if k != "custom_id"}, good | {"custom_id": 7})
    data += b'{"custom_id": "deep", "x": ' + b"[" * 200 + b"]" * 200 + b"}\n\xff\n"
    batch = await client.batch(data)
    assert batch["status"] == "failed" and batch["failed_at"] and counts(batch) == (0, 0, 0)
    assert batch["output_file_id"] is None and batch["error_file_id"] is None
    found = [(error["line"], error["code"]) for error in batch["errors"]["data"]]
    assert found == [
        (2, "invalid_json_line"),
        (4, "invalid_json_line"),
        (5, "duplicate_custom_id"),
        (6, "url_mismatch"),
        (7, "missing_required_parameter"),
        (8, "invalid_custom_id"),
        (9, "invalid_json_line"),
        (10, "invalid_json_line"),
    ]
    assert client.engine.asked == []
    for empty in (b"", b"\n \n", b"\xef\xbb\xbf"):
        batch = await client.batch(empty)
        assert [e["code"] for e in batch["errors"]["data"]] == ["empty_file"]
    many = await client.batch(b"x\n" * 5000)
    assert len(many["errors"]["data"]) == 1001
    assert "4,000 more" in many["errors"]["data"][-1]["message"]


@pytest.mark.parametrize("window", ["24h", "90m", "7d"])
@served()
async def test_windows_may_be_any_number_of_minutes_hours_or_days(
    client: Client, window: str
) -> None:
    batch = await client.batch(chats(1), completion_window=window)
    spans = {"24h": 86400, "90m": 5400, "7d": 7 * 86400}
    assert batch["expires_at"] - batch["created_at"] == spans[window]


@served()
async def test_a_batch_that_is_not_right_is_refused(client: Client) -> None:
    file = (await client.upload(chats(1))).json()["id"]
    for field, value in (
        ("endpoint", "/v1/nothing"),
        ("endpoint", None),
        ("completion_window", "0h"),
        ("completion_window", "24"),
        ("completion_window", "9999999d"),
        ("metadata", {"a": 1}),
        ("metadata", {str(i): "x" for i in range(17)}),
        ("metadata", {"a": "x" * 513}),
        ("output_expires_after", {"anchor": "created_at", "seconds": 1}),
        ("output_expires_after", 5),
    ):
        found = await client.create(file, **{field: value})
        assert found.status_code == 400, (field, value)
        assert found.json()["error"]["param"].startswith((field, "expires_after"))
    strange = await client.create(file, endpiont="x")
    assert "endpoint" in strange.json()["error"]["message"]
    other = (await client.upload(b"x", purpose="user_data")).json()["id"]
    assert (await client.create(other)).status_code == 400
    batch = await client.batch(chats(1))
    assert (await client.create(batch["output_file_id"])).status_code == 400
    for missing in ("file-" + "0" * 32, "../../x", "\0", ""):
        assert (await client.create(missing)).status_code == 404
    await client.http.delete(f"/v1/files/{file}")
    assert (await client.create(file)).status_code == 404


@served(lambda: FakeEngine(seconds=0.01))
async def test_a_cancelled_batch_keeps_what_is_finished(client: Client) -> None:
    engine = client.engine
    file = (await client.upload(chats(2000))).json()["id"]
    batch = (await client.create(file)).json()
    while counts(await client.get(batch["id"]))[1] < 64:
        await asyncio.sleep(0.02)
    cancelled = (await client.http.post(f"/v1/batches/{batch['id']}/cancel")).json()
    assert cancelled["status"] == "cancelling" and cancelled["cancelling_at"]
    batch = await client.ended(batch["id"])
    assert batch["status"] == "cancelled" and batch["cancelled_at"]
    total, completed, failed = counts(batch)
    assert total == 2000 == completed + failed and 64 <= completed < 2000
    assert len(await client.lines(batch["output_file_id"])) == completed
    errors = await client.lines(batch["error_file_id"])
    assert {line["error"]["code"] for line in errors} == {"batch_cancelled"}
    assert len(errors) == failed and all(line["response"] is None for line in errors)
    again = await client.http.post(f"/v1/batches/{batch['id']}/cancel")
    assert again.status_code == 400
    assert len(engine.asked) < 2000


def test_lines_without_an_answer_have_the_numbers_and_names_of_rows(tmp_path: Path) -> None:
    path = tmp_path / "input.jsonl"
    path.write_bytes(
        b"\xef\xbb\xbf"
        b'{"custom_id": "first", "body": {"odd": "\\ud800"}}\r\n\n  \n'
        b'{"custom_id": "once", "custom_id": "\\u00e9\xc3\xa9"}\n'
        b'{"custom_id": "changed\n'
        b'{"custom_id": "deep", "body": ' + b"[" * 4000 + b"]" * 4000 + b"}\n"
        b'{"body": {}, "custom_id": "last"}'
    )
    asking, selection = LineAsking(), Selection(id_column="custom_id")
    work = Work(
        find_files([str(path)]),
        asking,
        [Setting(None, {})],
        selection,
        seed=0,
        common="",
        reserved=frozenset(),
        done=frozenset(),
    )
    named = list(line_ids(path))
    assert named == [(row.row, row.key) for row in work.rows()]
    assert [name for _, name in named] == ["first", "éé", "0:2", "0:3", "last"]


@served()
async def test_a_batch_is_cancelled_before_the_engine_is_ready(client: Client) -> None:
    engine = client.engine
    engine.state = "loading"
    file = (await client.upload(chats(20))).json()["id"]
    batch = (await client.create(file)).json()
    await asyncio.sleep(0.1)
    await client.http.post(f"/v1/batches/{batch['id']}/cancel")
    batch = await client.ended(batch["id"])
    assert batch["status"] == "cancelled" and counts(batch) == (0, 0, 0)
    assert batch["output_file_id"] is None and batch["error_file_id"] is None


@served(lambda: FakeEngine(seconds=0.02))
async def test_an_expired_batch_keeps_what_is_finished(client: Client) -> None:
    file = (await client.upload(chats(3000))).json()["id"]
    batch = (await client.create(file)).json()
    while counts(await client.get(batch["id"]))[1] < 64:
        await asyncio.sleep(0.02)
    client.service._runs[batch["id"]].end("expired")  # what the timer calls
    batch = await client.ended(batch["id"])
    assert batch["status"] == "expired" and batch["expired_at"] and batch["finalizing_at"]
    total, completed, failed = counts(batch)
    assert total == 3000 == completed + failed and completed >= 64
    errors = await client.lines(batch["error_file_id"])
    assert {line["error"]["code"] for line in errors} == {"batch_expired"}


def test_a_window_that_ended_while_the_server_was_away_expires_the_batch(tmp_path: Path) -> None:
    async def main() -> None:
        engine = FakeEngine()
        engine.open.clear()
        async with serving(tmp_path, engine) as client:
            file = (await client.upload(chats(5))).json()["id"]
            batch = (await client.create(file, completion_window="1m")).json()
            await client.until(batch["id"], "in_progress")
            await client.service.database.write(
                lambda connection: batches.change(
                    connection,
                    batch["id"],
                    "in_progress",
                    of=("in_progress",),
                    expires_at=int(time.time()),
                )
            )
        engine = FakeEngine()
        engine.state = "loading"  # expiring needs no engine
        async with serving(tmp_path, engine) as client:
            batch = await client.ended(batch["id"])
            assert batch["status"] == "expired" and counts(batch) == (5, 0, 5)

    asyncio.run(main())


def test_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    async def main() -> None:
        engine = FakeEngine(seconds=0.02)
        async with serving(tmp_path, engine) as client:
            file = (await client.upload(chats(1000))).json()["id"]
            batch = (await client.create(file)).json()
            while counts(await client.get(batch["id"]))[1] < 128:
                await asyncio.sleep(0.02)
        again = FakeEngine()
        async with serving(tmp_path, again) as client:
            batch = await client.ended(batch["id"])
            assert batch["status"] == "completed" and counts(batch) == (1000, 1000, 0)
            lines = await client.lines(batch["output_file_id"])
            assert [line["custom_id"] for line in lines] == [str(i) for i in range(1000)]
            assert len(again.asked) <= 1000 - 128
            [job_dir] = (tmp_path / "batches").iterdir()
            assert len(list(read_results(job_dir))) == 1000
            assert Manifest.load(job_dir).status == "finished"

    asyncio.run(main())


def test_a_batch_that_was_being_cancelled_is_cancelled_by_the_next_start(tmp_path: Path) -> None:
    async def main() -> None:
        engine = FakeEngine()
        engine.open.clear()
        async with serving(tmp_path, engine) as client:
            batch = (await client.create((await client.upload(chats(5))).json()["id"])).json()["id"]
            await client.until(batch, "in_progress")
            await client.service.database.write(
                lambda connection: batches.change(
                    connection, batch, "cancelling", of=("in_progress",)
                )
            )
        async with serving(tmp_path) as client:
            ended = await client.ended(batch)
            assert ended["status"] == "cancelled" and counts(ended) == (5, 0, 5)

    asyncio.run(main())


def test_another_model_or_arithmetic_waits_and_says_why(tmp_path: Path) -> None:
    async def main() -> None:
        engine = FakeEngine()
        engine.open.clear()
        async with serving(tmp_path, engine) as client:
            file = (await client.upload(chats(3))).json()["id"]
            batch = (await client.create(file)).json()
            await client.until(batch["id"], "in_progress")
        other = FakeEngine()
        other.facts = {"arithmetic": {"device": "another"}}
        for changed in ({"engine": other}, {"model": "other"}):
            async with serving(tmp_path, **changed) as client:  # type: ignore[arg-type]
                while (found := await client.get(batch["id"]))["status_details"] is None:
                    await asyncio.sleep(0.01)
                assert found["status"] == "in_progress"
                assert "other" in found["status_details"]
                assert client.engine.asked == []
        async with serving(tmp_path) as client:
            assert (await client.ended(batch["id"]))["status"] == "completed"

    asyncio.run(main())


@served(lambda: FakeEngine(seconds=0.01))
async def test_the_row_that_brings_the_engine_down_is_found(client: Client) -> None:
    engine = client.engine
    rows = [chat_line(i, "<crash>" if i == 37 else f"row {i}") for i in range(200)]
    other = (await client.create((await client.upload(chats(200))).json()["id"])).json()
    batch = await client.batch(lines_of(*rows))
    assert batch["status"] == "completed" and counts(batch) == (200, 199, 1)
    [line] = await client.lines(batch["error_file_id"])
    assert line["custom_id"] == "37" and line["error"]["code"] == "engine_crash"
    assert engine.num_crashes <= 12
    assert counts(await client.ended(other["id"])) == (200, 200, 0)


@served()
async def test_an_engine_that_falls_with_every_row_blames_none(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = client.engine
    monkeypatch.setattr(batch_dispatch, "REST", 0.2)
    real = engine.generate

    async def falling(row: dict[str, Any], **more: Any) -> Any:
        bad = {**row, "messages": [{"role": "user", "content": "<crash>"}]}
        async for output in real(bad if engine.num_crashes < 30 else row, **more):
            yield output

    engine.generate = falling  # type: ignore[method-assign]
    batch = await client.batch(chats(6))
    assert batch["status"] == "completed" and counts(batch) == (6, 6, 0)


@served(lambda: FakeEngine(seconds=0.02))
async def test_a_small_batch_does_not_wait_for_a_large_one(client: Client) -> None:
    large = (await client.create((await client.upload(chats(5000))).json()["id"])).json()
    await client.until(large["id"], "in_progress")
    small = await client.batch(chats(20))
    assert small["status"] == "completed"
    assert counts(await client.get(large["id"]))[1] < 2500


@served()
async def test_batches_are_listed_in_pages(client: Client) -> None:
    file = (await client.upload(chats(1))).json()["id"]
    made = [(await client.create(file)).json()["id"] for _ in range(5)]
    first = (await client.http.get("/v1/batches?limit=2")).json()
    assert [b["id"] for b in first["data"]] == made[:2:-1] and first["has_more"]
    assert (first["first_id"], first["last_id"]) == (made[4], made[3])
    rest = (await client.http.get(f"/v1/batches?limit=9&after={made[3]}")).json()
    assert [b["id"] for b in rest["data"]] == made[2::-1] and not rest["has_more"]
    again = (await client.http.get("/v1/batches?limit=2&after=")).json()
    assert [b["id"] for b in again["data"]] == made[:2:-1]
    for wrong in ("limit=0", "limit=101", "limit=x", "order=up"):
        assert (await client.http.get(f"/v1/batches?{wrong}")).status_code == 400
    assert (await client.http.get("/v1/batches?after=batch_x")).status_code == 404


@served(keys=KEYS)
async def test_one_key_does_not_see_what_another_has(client: Client) -> None:
    file = (await client.upload(chats(2))).json()["id"]
    batch = await client.ended((await client.create(file)).json()["id"])
    stranger = {"authorization": f"Bearer {KEYS[1]}"}
    output = batch["output_file_id"]
    for method, path in (
        ("GET", f"/v1/files/{file}"),
        ("GET", f"/v1/files/{file}/content"),
        ("GET", f"/v1/files/{output}/content"),
        ("DELETE", f"/v1/files/{file}"),
        ("GET", f"/v1/batches/{batch['id']}"),
        ("POST", f"/v1/batches/{batch['id']}/cancel"),
        ("GET", f"/v1/files?after={file}"),
        ("GET", f"/v1/batches?after={batch['id']}"),
    ):
        found = await client.http.request(method, path, headers=stranger)
        assert found.status_code == 404, (method, path)
        assert (
            await client.http.request(method, path, headers={"authorization": ""})
        ).status_code == 401
    for path in ("/v1/files", "/v1/batches"):
        assert (await client.http.get(path, headers=stranger)).json()["data"] == []
    body = {
        "input_file_id": file,
        "endpoint": "/v1/chat/completions",
        "completion_window": "1h",
    }
    found = await client.http.post("/v1/batches", json=body, headers=stranger)
    assert found.status_code == 404
    assert (await client.http.get(f"/v1/files/{file}")).status_code == 200


@served(max_live_batches=5)
async def test_a_key_has_a_bounded_number_of_live_batches(client: Client) -> None:
    engine = client.engine
    engine.open.clear()
    file = (await client.upload(chats(1))).json()["id"]
    codes = [(await client.create(file)).status_code for _ in range(7)]
    assert codes == [200] * 5 + [429] * 2
    engine.open.set()


@served(keys=KEYS)
async def test_more_batches_than_run_at_once_all_end(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They keep no other key waiting."""
    engine = client.engine
    monkeypatch.setattr(batch_service, "MOST_RUNNING", 2)
    engine.open.clear()
    file = (await client.upload(chats(3))).json()["id"]
    made = [(await client.create(file)).json()["id"] for _ in range(6)]
    async with asyncio.timeout(10):
        while len(engine.asked) < 6:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert len(engine.asked) == 6, "two batches"
    client.http.headers["authorization"] = f"Bearer {KEYS[1]}"
    await client.create((await client.upload(chats(3))).json()["id"])
    async with asyncio.timeout(10):
        while len(engine.asked) < 9:
            await asyncio.sleep(0.01)
    client.http.headers["authorization"] = f"Bearer {KEYS[0]}"
    await client.http.post(f"/v1/batches/{made[5]}/cancel")
    assert (await client.ended(made[5]))["status"] == "cancelled"  # though it never had a turn
    engine.open.set()
    for each in made[:5]:
        assert (await client.ended(each))["status"] == "completed"


@served()
async def test_what_is_sampled_depends_on_the_line_alone(client: Client) -> None:
    rows = [chat_line(i, "same", temperature=1.0) for i in range(8)]
    texts = []
    for _ in range(2):
        batch = await client.batch(lines_of(*rows))
        lines = await client.lines(batch["output_file_id"])
        texts.append([x["response"]["body"]["choices"][0]["message"]["content"] for x in lines])
    assert texts[0] == texts[1] and len(set(texts[0])) == 8


@served()
async def test_a_deleted_output_takes_the_journal_with_it(client: Client, tmp_path: Path) -> None:
    batch = await client.batch(lines_of(chat_line(1, "x"), chat_line(2, "<bad>")))
    [job_dir] = (tmp_path / "batches").iterdir()
    await client.http.delete(f"/v1/files/{batch['output_file_id']}")
    assert job_dir.exists()
    await client.http.delete(f"/v1/files/{batch['error_file_id']}")
    assert not job_dir.exists()
    assert (await client.get(batch["id"]))["status"] == "completed"
    [bytes_left] = [p for p in (tmp_path / "files").rglob("*") if p.is_file()]
    assert bytes_left.read_bytes().startswith(b'{"custom_id": "1"')
