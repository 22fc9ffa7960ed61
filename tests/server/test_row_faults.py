"""A fault while something is made for one row costs that row alone."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from quire import AsyncLLM, BatchError, SamplingParams
from quire.base import boundary
from quire.errors import RowError
from tests.faults_of_rows import PLACES, put_faults
from tests.server.serving import chat, client, serving, until
from tests.server.stored import lines_of
from tests.server.test_batch_engines import create, ended, lines
from tests.tiny_llm import tiny_llm

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
FAULTS = [f"{kind} at {place}" for kind in ("fault", "panic") for place in PLACES]


def text(prompt: str, **more: Any) -> dict[str, Any]:
    return {"model": "fake", "prompt": prompt, "temperature": 0, "max_tokens": 30, **more}


def test_a_server_answers_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "quire")
    wrong = [*FAULTS, "fault at sending", "panic at sending", "fault at preparing"]
    session = "tests.server.fake_session:make_faulty"
    with serving(tmp_path, "fake:delay=0.01", session=session) as server, client(server) as http:
        expected = http.post(TEXT, json=text("calm")).json()["choices"]
        with ThreadPoolExecutor(32) as pool:
            calm = [pool.submit(http.post, TEXT, json=text("calm")) for _ in range(4)]
            streams = {
                prompt: pool.submit(http.post, TEXT, json=text(prompt, stream=True))
                for prompt in wrong
            }
            wholes = {
                prompt: pool.submit(http.post, TEXT, json=text(prompt, stop=["never"]))
                for prompt in wrong
                if "growing" not in prompt
            }
        for one in calm:
            assert one.result().json()["choices"] == expected
        for prompt, made in wholes.items():
            error = made.result().json()["error"]
            assert made.result().status_code == 500, prompt
            assert error["code"] == "row_error" and error["type"] == "server_error"
            kind = "LookupError" if "fault" in prompt else "PanicException"
            assert "this row failed while" in error["message"] and kind in error["message"]
            assert "made up" not in error["message"]  # what it says stays here
        for prompt, made in streams.items():
            last = [line for line in made.result().text.split("\n") if line][-1]
            told = json.loads(last.removeprefix("data: "))
            assert told["error"]["code"] == "row_error", (prompt, last)
        assert http.post(TEXT, json=text("calm")).json()["choices"] == expected
        with ThreadPoolExecutor(2) as pool:
            url = {"type": "image_url", "image_url": {"url": "https://a slow host/x.png"}}
            seen = chat(max_tokens=1, messages=[{"role": "user", "content": [url]}])
            pictures = [pool.submit(http.post, CHAT, json=seen) for _ in range(2)]
            until(lambda: len(server.bridge._readings) == 2)
            assert http.post(CHAT, json=chat(max_tokens=1)).status_code == 200
            assert not any(one.done() for one in pictures)  # text does not wait for them
        assert not server.bridge.stats().restarts
    noted = "\n".join(record.getMessage() for record in caplog.records)
    for place in ("stopping.py", "engine_thread.py", "run.py", "serving.py", "requests.py"):
        assert place in noted
    assert "made up" not in noted  # what an error says may quote a prompt


def test_a_batch_has_the_answers_of_all_others(tmp_path: Path) -> None:
    """Its rows are prepared and read in groups, and the group does not end with one of them."""
    wrong = [f"fault at {place}" for place in ("preparing", "reading", "beginning", "ending")]
    wrong += ["panic at reading", "no memory at preparing"]
    prompts = [*(f"calm {i}" for i in range(50)), *wrong, ""]
    random.Random(1).shuffle(prompts)
    asked = [
        {"custom_id": f"of {prompt}", "url": TEXT, "body": {**text(prompt), "max_tokens": 3}}
        for prompt in prompts
    ]
    session = "tests.server.fake_session:make_faulty"
    with serving(tmp_path, session=session) as server, client(server) as http:
        batch = ended(http, create(http, lines_of(*asked), TEXT))
        assert batch["request_counts"] == {"total": 57, "completed": 50, "failed": 7}
        failed = {line["custom_id"]: line for line in lines(http, batch["error_file_id"])}
        assert failed.pop("of ")["response"]["status_code"] == 400
        assert set(failed) == {f"of {prompt}" for prompt in wrong}
        assert {line["error"]["code"] for line in failed.values()} == {"row_error"}
        assert not server.bridge.stats().restarts


def test_rows_of_an_engine_that_failed_are_asked_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "quire")
    with serving(tmp_path, "fake:rows=4:delay=0.02") as server, client(server) as http:
        expected = http.post(TEXT, json=text("calm")).json()["choices"]
        with ThreadPoolExecutor(3) as pool:
            calm = [pool.submit(http.post, TEXT, json=text("calm")) for _ in range(2)]
            until(lambda: len(server.bridge._readings) == 2)
            wrong = http.post(TEXT, json=text("<huge>", stream=True)).text
        assert [one.result().json()["choices"] for one in calm] == [expected] * 2
        assert "engine_crash" in wrong and "made up" not in wrong and "[DONE]" not in wrong
        assert server.bridge.stats().restarts == 1
    noted = "\n".join(record.getMessage() for record in caplog.records)
    assert "the engine ended (the device failed: made up)" in noted


def test_a_row_that_memory_is_too_small_for_is_told_no_more(tmp_path: Path) -> None:
    session = "tests.server.fake_session:make_faulty"
    with serving(tmp_path, session=session) as server, client(server) as http:
        told = http.post(TEXT, json=text("no memory at preparing"))
        assert told.status_code == 500 and told.json()["error"]["code"] == "row_error"
        assert told.json()["error"]["message"] == "this row could not be prepared: memory ran out"
        assert not server.bridge.stats().restarts


def test_tasks_of_an_async_llm_get_the_error_and_the_others_their_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_llm(tmp_path).close()
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)

    async def answer(llm: AsyncLLM, prompt: str) -> list[int] | RowError:
        try:
            outputs = [output async for output in llm.generate(prompt, params)]
        except RowError as error:
            return error
        return list(outputs[-1].outputs[0].token_ids)

    async def answers(llm: AsyncLLM, prompts: list[str]) -> list[list[int] | RowError]:
        return await asyncio.gather(*(answer(llm, prompt) for prompt in prompts))

    options: dict[str, Any] = {"tokenizer": "smollm2", "load_format": "dummy", "dtype": "float32"}
    with AsyncLLM(str(tmp_path), kv_cache_memory_bytes=8 << 20, **options) as llm:
        [expected] = asyncio.run(answers(llm, ["calm"]))
        put_faults(monkeypatch.setattr)
        made = asyncio.run(answers(llm, ["calm", *FAULTS, "calm"]))
        assert made[0] == made[-1] == expected
        assert all(isinstance(one, RowError) for one in made[1:-1])
        assert not llm.errored
        engine = llm._session.engine
        assert engine.idle and engine.scheduler.pool.num_free == engine.scheduler.pool.num_blocks


def test_an_llm_finishes_the_other_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tiny_llm(tmp_path) as llm:
        params = SamplingParams(temperature=0, max_tokens=12, stop=["never"])
        [expected] = llm.generate(["calm"], params, use_tqdm=False)
        put_faults(monkeypatch.setattr)
        # Equal prompts are computed once: each of them has the error.
        prompts = ["calm", "fault at beginning", "fault at beginning", "fault at ending"]
        prompts += ["panic at following", "fault at ending"]
        with pytest.raises(BatchError) as failed:
            llm.generate(prompts, params, use_tqdm=False)
        assert sorted(failed.value.errors) == [1, 2, 3, 4, 5]
        assert all(isinstance(one, RowError) for one in failed.value.errors.values())
        assert failed.value.outputs[0].outputs[0].text == expected.outputs[0].text
        pool = llm._session.engine.scheduler.pool
        assert pool.num_free == pool.num_blocks


def test_a_fault_of_many_rows_is_noted_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "quire")
    for _ in range(1000):
        try:
            {}["secret of a row"]  # noqa: B018
        except KeyError as error:
            boundary.fault_of_row(error, "it was tried")
    noted = [r.getMessage() for r in caplog.records if "it was tried" in r.getMessage()]
    assert len(noted) == 1 and "test_row_faults.py" in noted[0] and "secret" not in noted[0]
