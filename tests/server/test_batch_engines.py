"""Batches with a real engine process: official client, kills of the engine, poison, a restart."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from quire.cli import main
from quire.server.serve import Serving
from tests.server.serving import KEY, client, serving, until
from tests.server.stored import CHAT, COMPLETIONS, chat_line, lines_of

KILLS, LONG_KILLS = 3, 50


def upload(http: httpx.Client, data: bytes) -> str:
    form = {"purpose": "batch"}
    found = http.post("/v1/files", files={"file": ("in.jsonl", data)}, data=form)
    return str(found.raise_for_status().json()["id"])


def create(http: httpx.Client, data: bytes, endpoint: str = CHAT) -> str:
    body = {"input_file_id": upload(http, data), "endpoint": endpoint, "completion_window": "24h"}
    return str(http.post("/v1/batches", json=body).raise_for_status().json()["id"])


def get(http: httpx.Client, batch_id: str) -> dict[str, Any]:
    return http.get(f"/v1/batches/{batch_id}").raise_for_status().json()


def ended(http: httpx.Client, batch_id: str, seconds: float = 60.0) -> dict[str, Any]:
    ends = ("completed", "failed", "expired", "cancelled")
    until(lambda: get(http, batch_id)["status"] in ends, seconds)
    return get(http, batch_id)


def lines(http: httpx.Client, file_id: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in http.get(f"/v1/files/{file_id}/content").iter_lines()]


def texts(found: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [
        (line["custom_id"], line["response"]["body"]["choices"][0]["message"]["content"])
        for line in found
    ]


def kill_engine(server: Serving) -> None:
    life = server.bridge._life
    if life is not None:
        os.kill(life.pid, signal.SIGKILL)


def send_crash(server: Serving) -> None:
    with client(server) as http:
        asked = {"model": "fake", "prompt": "<crash>", "max_tokens": 4}
        assert http.post(COMPLETIONS, json=asked).status_code == 500


def rows(count: int, **more: Any) -> bytes:
    about = {"max_completion_tokens": 12, "temperature": 1.0, **more}
    return lines_of(*(chat_line(f"row {i}", f"say {i}", **about) for i in range(count)))


def test_text_that_no_message_can_hold_costs_its_own_line(tmp_path: Path) -> None:
    """Those asked together with it are of other batches and other keys."""
    half, user = "\ud800", {"role": "user", "content": "say"}
    wrong = [
        {"messages": [{"role": "user", "content": half}]},
        {"messages": [{**user, "role": half}]},
        {"messages": [{**user, half: 1}]},
        {"stop": ["a", half]},
        {"structured_outputs": {"regex": half}},
    ]
    bad = [chat_line(f"bad {i}", "say", **more) for i, more in enumerate(wrong)]
    with serving(tmp_path, "fake:rows=8:chat=1") as server, client(server) as http:
        mixed = create(http, rows(10) + lines_of(*bad))
        others = create(http, rows(10))
        for made, num_wrong in ((mixed, len(bad)), (others, 0)):
            counts = ended(http, made)["request_counts"]
            assert counts == {"total": 10 + num_wrong, "completed": 10, "failed": num_wrong}
        told = lines(http, get(http, mixed)["error_file_id"])
    assert [line["custom_id"] for line in told] == [f"bad {i}" for i in range(len(wrong))]
    for line in told:
        assert line["response"]["status_code"] == 400
        assert "U+D800" in line["response"]["body"]["error"]["message"]


def test_the_official_client_does_all_of_it(tmp_path: Path) -> None:
    with serving(tmp_path, "fake:rows=8:chat=1") as server:
        api = openai.OpenAI(
            base_url=f"{server.address}/v1", api_key=KEY, _strict_response_validation=True
        )
        after: Any = {"anchor": "created_at", "seconds": 7200}
        file = api.files.create(file=("in.jsonl", rows(20)), purpose="batch", expires_after=after)
        assert file.expires_at == file.created_at + 7200
        assert api.files.retrieve(file.id) == file
        batch = api.batches.create(
            input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"a": "b"}
        )
        until(lambda: api.batches.retrieve(batch.id).status == "completed")
        batch = api.batches.retrieve(batch.id)
        assert batch.request_counts and batch.request_counts.completed == 20
        assert batch.usage and batch.usage.output_tokens > 0 and batch.errors is None
        assert batch.output_file_id and batch.error_file_id is None
        answers = api.files.content(batch.output_file_id).text.splitlines()
        assert len(answers) == 20
        for line in answers:
            openai.types.chat.ChatCompletion.model_validate(
                json.loads(line)["response"]["body"], strict=False
            )
        batches = [
            api.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        ]
        assert [b.id for b in api.batches.list(limit=1)] == [batches[0].id, batch.id]
        assert {f.id for f in api.files.list(purpose="batch_output")} >= {batch.output_file_id}
        until(lambda: api.batches.retrieve(batches[0].id).status == "completed")
        with pytest.raises(openai.BadRequestError):
            api.batches.cancel(batch.id)
        assert api.files.delete(file.id).deleted
        with pytest.raises(openai.NotFoundError):
            api.files.retrieve(file.id)
        data = rows(5)
        upload = api.uploads.create(
            filename="p.jsonl", purpose="batch", bytes=len(data), mime_type="application/jsonl"
        )
        parts = [
            api.uploads.parts.create(upload.id, data=piece).id for piece in (data[:99], data[99:])
        ]
        whole = api.uploads.complete(upload.id, part_ids=parts)
        assert whole.status == "completed" and whole.file is not None
        assert api.files.content(whole.file.id).content == data
        with pytest.raises(openai.BadRequestError):
            api.uploads.cancel(upload.id)


def test_responses_are_answered_in_batches_and_counted(tmp_path: Path) -> None:
    def asked(i: int) -> dict[str, Any]:
        body = {"model": "fake", "input": f"say {i}", "max_output_tokens": 4}
        return {"custom_id": str(i), "url": "/v1/responses", "body": body}

    with serving(tmp_path, "fake:rows=8:chat=1") as server, client(server) as http:
        data = lines_of(*map(asked, range(5)), {**asked(5), "body": {}})
        batch = ended(http, create(http, data, "/v1/responses"))
        assert batch["request_counts"] == {"total": 6, "completed": 5, "failed": 1}
        found = lines(http, batch["output_file_id"])
        for line in found:
            body = openai.types.responses.Response.model_validate(line["response"]["body"])
            assert body.object == "response" and body.output_text
        assert len({line["response"]["body"]["id"] for line in found}) == 5
        told = http.get("/metrics").text
        assert 'quire:batches{engine="0",model_name="fake",status="completed"} 1.0' in told
        assert 'quire:batch_rows_total{engine="0",model_name="fake",result="failed"} 1.0' in told


def test_a_line_that_kills_engines_is_found_and_the_server_lives(tmp_path: Path) -> None:
    def asked(i: int) -> dict[str, Any]:
        prompt = "<crash>" if i == 9 else f"say {i}"
        body = {"model": "fake", "prompt": prompt, "max_tokens": 4}
        return {"custom_id": str(i), "url": COMPLETIONS, "body": body}

    with serving(tmp_path, "fake:rows=8") as server, client(server) as http:
        batch = ended(http, create(http, lines_of(*map(asked, range(40))), COMPLETIONS), 120)
        assert batch["request_counts"] == {"total": 40, "completed": 39, "failed": 1}
        [line] = lines(http, batch["error_file_id"])
        assert line["custom_id"] == "9" and line["error"]["code"] == "engine_crash"
        until(lambda: http.get("/health").status_code == 200)  # the last one may still load


def test_kills_of_the_engine_change_no_answer(tmp_path: Path, long_mode: bool) -> None:
    rng, wanted = random.Random(3), LONG_KILLS if long_mode else KILLS
    with serving(tmp_path, "fake:rows=8:chat=1:delay=0.01") as server, client(server) as http:
        calm = ended(http, create(http, rows(80)))
        expected = texts(lines(http, calm["output_file_id"]))
        num_kills = 0
        while num_kills < wanted:
            batch_id = create(http, rows(80))
            while get(http, batch_id)["status"] in ("validating", "in_progress"):
                time.sleep(rng.uniform(0.1, 1.0))
                if num_kills < wanted and server.bridge.state == "ready":
                    kill_engine(server)
                    num_kills += 1
            batch = ended(http, batch_id)
            assert batch["request_counts"] == {"total": 80, "completed": 80, "failed": 0}
            assert texts(lines(http, batch["output_file_id"])) == expected


@pytest.mark.parametrize("end_engine", [kill_engine, send_crash])
def test_a_row_alone_with_the_engine_is_not_blamed_for_what_others_do(
    tmp_path: Path, end_engine: Callable[[Serving], None]
) -> None:
    """Neither for kills from outside nor for requests that bring the engine down."""
    body = {"model": "fake", "prompt": "say it", "max_tokens": 60, "temperature": 0}
    with serving(tmp_path, "fake:rows=8:delay=0.03") as server, client(server) as http:

        def is_running() -> bool:
            life = server.bridge._life
            return server.bridge.state == "ready" and life is not None and bool(life.board.rows())

        line = lines_of({"custom_id": "0", "url": COMPLETIONS, "body": body})
        batch_id = create(http, line, COMPLETIONS)
        for _ in range(4):
            until(is_running, 60)
            before = server.bridge.stats().restarts
            end_engine(server)
            until(lambda: server.bridge.stats().restarts > before, 60)  # noqa: B023
        batch = ended(http, batch_id)
        assert batch["request_counts"] == {"total": 1, "completed": 1, "failed": 0}


def test_a_server_that_is_stopped_goes_on_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = "fake:rows=8:chat=1:delay=0.01"
    with serving(tmp_path, model, grace=0.2) as server, client(server) as http:
        batch_id = create(http, rows(150))
        until(lambda: get(http, batch_id)["request_counts"]["completed"] >= 16)
    with serving(tmp_path, model) as server, client(server) as http:
        batch = ended(http, batch_id)
        assert batch["request_counts"] == {"total": 150, "completed": 150, "failed": 0}
        found = lines(http, batch["output_file_id"])
        assert [line["custom_id"] for line in found] == [f"row {i}" for i in range(150)]
    [job_dir] = (tmp_path / "batches").iterdir()
    moved = tmp_path / "moved"
    shutil.copytree(job_dir, moved)
    for verb in (["show", str(job_dir)], ["report", str(moved), "-o", str(tmp_path / "page.html")]):
        with pytest.raises(SystemExit) as ending:
            main(verb)
        assert not ending.value.code, capsys.readouterr()
    assert "150" in capsys.readouterr().out
    assert (tmp_path / "page.html").stat().st_size > 10_000


def test_the_default_model_answers_a_batch(tmp_path: Path, default_model: Path) -> None:
    body = {"model": "smollm2", "max_tokens": 6, "temperature": 0, "logprobs": 2}
    data = [
        {"custom_id": str(i), "url": COMPLETIONS, "body": {**body, "prompt": prompt}}
        for i, prompt in enumerate(("The capital of France is", "One two three four", [1, 2, 3]))
    ]
    with (
        serving(tmp_path, str(default_model), names=("smollm2",)) as server,
        client(server) as http,
    ):
        batch = ended(http, create(http, lines_of(*data), COMPLETIONS), 120)
        assert batch["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
        found = lines(http, batch["output_file_id"])
        assert "Paris" in found[0]["response"]["body"]["choices"][0]["text"]
        direct = http.post(COMPLETIONS, json=data[1]["body"]).json()
        batched = found[1]["response"]["body"]
        assert batched["choices"] == direct["choices"]
        assert set(batched) == set(direct)
