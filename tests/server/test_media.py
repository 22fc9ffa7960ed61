"""Media over HTTP: in chats, responses and batches as in LLM.chat, and nothing fetched unasked."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from openai import OpenAI

from quire import BatchError, MediumFailed, SamplingParams
from quire.executor.cpu.local import LocalExecutor
from quire.models.towers.tower import ModuleTower
from quire.server.child.preparing import Preparing
from quire.server.queueing import Queueing
from quire.server.serve import Serving
from tests.media import test_hearing
from tests.media.families import SEEING
from tests.media.hearing import tone, wav
from tests.media.test_chats import PARTS, encoded, words
from tests.media.tiny import TinyModel, picture, save_tiny
from tests.server.serving import KEY, client, serving
from tests.server.stored import CHAT, lines_of
from tests.server.test_batch_engines import create, ended, lines

OPTIONS = {"dtype": "float32", "quantization": "none", "kv_cache_memory_bytes": 16 << 20}
ASKED = {"model": "sees", "temperature": 0, "max_tokens": 6, "ignore_eos": True}
FIRST, SECOND = picture(40, 24), picture(30, 30, 1)


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def chat(*parts: Any, **more: Any) -> dict[str, Any]:
    return {**ASKED, "messages": [{"role": "user", "content": list(parts)}], **more}


PROMPTS = (
    [words("one two"), image(encoded(FIRST)), words("three")],
    [image(encoded(FIRST)), image(encoded(SECOND)), words("and")],
    [words("none of them")],
)


def saved(name: str, path: Path) -> TinyModel:
    family = SEEING[name]
    made = save_tiny(path, family.make(), family.added, family.processor)
    about = path / "tokenizer_config.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "chat_template": PARTS}))
    return made


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    made = saved("qwen3_vl", tmp_path_factory.mktemp("sees"))
    FIRST.save(made.path / "one.png")
    return made


@pytest.fixture(scope="module")
def server(model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    options = {**OPTIONS, "allowed_local_media_path": str(model.path)}
    options["allowed_media_domains"] = ["localhost", "localhost:8000"]
    data = tmp_path_factory.mktemp("data")
    with serving(data, str(model.path), names=("sees",), options=options) as made:
        yield made


@pytest.fixture(scope="module")
def http(server: Serving) -> Iterator[httpx.Client]:
    with client(server) as made:
        yield made


def written(model: TinyModel) -> list[tuple[str, int]]:
    """What LLM.chat writes, and how long its prompts are."""
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    with model.llm() as llm:
        chats = [[{"role": "user", "content": parts}] for parts in PROMPTS]
        outputs = llm.chat(chats, params, use_tqdm=False)
    return [(output.outputs[0].text, output.num_prompt_tokens) for output in outputs]


@pytest.fixture(scope="module")
def expected(model: TinyModel) -> list[tuple[str, int]]:
    return written(model)


def told(body: dict[str, Any]) -> tuple[str, int]:
    return body["choices"][0]["message"]["content"], body["usage"]["prompt_tokens"]


def test_chats_and_responses_see(http: httpx.Client, expected: list[tuple[str, int]]) -> None:
    for parts, wanted in zip(PROMPTS, expected, strict=True):
        assert told(http.post(CHAT, json=chat(*parts)).raise_for_status().json()) == wanted
    asked = {"model": "sees", "temperature": 0, "max_output_tokens": 6}
    parts = [
        {"type": "input_text", "text": "one two"},
        {"type": "input_image", "image_url": encoded(FIRST), "detail": "auto"},
        {"type": "input_text", "text": "three"},
    ]
    asked["input"] = [{"role": "user", "content": parts}]
    body = http.post("/v1/responses", json=asked).raise_for_status().json()
    assert body["usage"]["input_tokens"] == expected[0][1]


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_vl_moe"])
def test_other_models_see_in_chats_of_the_official_client(name: str, tmp_path: Path) -> None:
    model = saved(name, tmp_path)
    more = {**ASKED, "messages": []}
    del more["ignore_eos"]
    with (
        serving(tmp_path / "data", str(tmp_path), names=("sees",), options=OPTIONS) as server,
        OpenAI(base_url=f"{server.address}/v1", api_key=KEY, max_retries=0) as asking,
    ):
        for parts, wanted in zip(PROMPTS, written(model), strict=True):
            more["messages"] = [{"role": "user", "content": parts}]
            body = asking.chat.completions.create(**more, extra_body={"ignore_eos": True})
            assert told(body.model_dump()) == wanted


def test_messages_see_what_users_and_tools_show(
    http: httpx.Client, expected: list[tuple[str, int]]
) -> None:
    data = encoded(FIRST).partition(",")[2]
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    blocks = [words("one two"), block, words("three")]
    asked = {"model": "sees", "temperature": 0, "max_tokens": 6}
    seen = {"messages": [{"role": "user", "content": blocks}]}
    body = http.post("/v1/messages", json={**asked, **seen}).raise_for_status().json()
    same = http.post(CHAT, json={**chat(*PROMPTS[0]), "ignore_eos": False}).json()
    assert body["content"][0]["text"] == told(same)[0]
    usage = body["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == expected[0][1]
    call = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": blocks}
    turns = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    shown = http.post("/v1/messages", json={**asked, "messages": turns}).raise_for_status().json()
    blind = {**result, "content": [words("one two"), words("three")]}
    turns[2] = {"role": "user", "content": [blind]}
    told_only = http.post("/v1/messages", json={**asked, "messages": turns}).json()
    assert _read(shown) > _read(told_only) + 3, "the image has tokens"
    url = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/x.png"}}
    turns[2] = {"role": "user", "content": [{**result, "content": [words("x"), url]}]}
    refused = http.post("/v1/messages", json={**asked, "system": "s", "messages": turns})
    assert refused.status_code == 400 and "127.0.0.1" in refused.json()["error"]["message"]
    counted = http.post("/v1/messages/count_tokens", json={"model": "sees", **seen})
    assert counted.status_code == 400 and "media" in counted.json()["error"]["message"]


def _read(body: dict[str, Any]) -> int:
    return int(body["usage"]["input_tokens"] + body["usage"]["cache_read_input_tokens"])


def test_lines_of_a_batch_see(http: httpx.Client, expected: list[tuple[str, int]]) -> None:
    rows = [
        {"custom_id": str(i), "url": CHAT, "body": chat(*parts)} for i, parts in enumerate(PROMPTS)
    ]
    bad = {"custom_id": "bad", "url": CHAT, "body": chat(image("http://127.0.0.1/x.png"))}
    batch = ended(http, create(http, lines_of(*rows, bad)))
    assert batch["request_counts"] == {"total": 4, "completed": 3, "failed": 1}
    found = [told(line["response"]["body"]) for line in lines(http, batch["output_file_id"])]
    assert found == expected


def test_files_only_below_the_folder_that_was_allowed(
    http: httpx.Client, model: TinyModel, expected: list[tuple[str, int]]
) -> None:
    first = [words("one two"), image(f"file://{model.path}/one.png"), words("three")]
    assert told(http.post(CHAT, json=chat(*first)).raise_for_status().json()) == expected[0]


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://127.0.0.1/x.png", "allowed_media_domains"),
        ("https://images.example/x.png", "allowed_media_domains"),
        ("http://[::1]:80/x.png", "allowed_media_domains"),
        ("http://2130706433/x.png", "allowed_media_domains"),
        ("http://0177.0.0.1/x.png", "allowed_media_domains"),
        ("http://[::ffff:127.0.0.1]/x.png", "allowed_media_domains"),
        ("http://localhost@127.0.0.1/x.png", "allowed_media_domains"),
        ("http://127.0.0.1#@localhost/x.png", "allowed_media_domains"),
        ("http://localhost\\@127.0.0.1/x.png", "allowed_media_domains"),
        ("http://u:p@localhost/x.png", "a name or a password"),
        ("http://localhost/x.png", "not a public address"),
        ("http://LOCALHOST.:8000/x.png", "not a public address"),
        ("http://localhost:22/x.png", "allowed_media_domains"),
        ("http://localhost:99999/x.png", "could not be fetched"),
        ("file:///etc/passwd", "allowed_local_media_path"),
        ("file://other/etc/passwd", "another machine"),
        ("/etc/passwd", "neither"),
        ("ftp://x/y.png", "neither"),
        ("data:image/png,plain", "base64"),
        ("data:image/png;base64,%%%", "base64"),
        ("data:image/png;base64,AAAA", "format"),
    ],
)
def test_15_what_is_not_allowed_is_refused(http: httpx.Client, url: str, why: str) -> None:
    response = http.post(CHAT, json=chat(words("x"), image(url)))
    error = response.json()["error"]
    assert response.status_code == 400 and why in error["message"], error
    assert error["param"] == "messages"


def test_a_server_encodes_beside_the_engine_and_has_its_tower_before_the_first_image(
    model: TinyModel, expected: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tower is made in seconds, and takes as many for a large image: texts wait for neither."""
    computed: list[str] = []
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    with model.llm() as llm:
        llm._session.prepare_media()
        shelf = cast(LocalExecutor, llm._session.model.executor).shelf
        tower = shelf._tower
        assert isinstance(tower, ModuleTower), "made before an image came"
        call = tower._call

        def noted(*given: Any) -> Any:
            computed.append(threading.current_thread().name)
            return call(*given)

        monkeypatch.setattr(tower, "_call", noted)
        chats = [[{"role": "user", "content": parts}] for parts in PROMPTS]
        outputs = llm.chat(chats, params, use_tqdm=False)
        assert [(out.outputs[0].text, out.num_prompt_tokens) for out in outputs] == expected
        assert len(computed) == 2 and all(name.startswith("quire-media") for name in computed)
        monkeypatch.setattr(tower, "_call", lambda *_: 1 / 0)
        other = [words("x"), image(encoded(picture(32, 32, 7)))]
        with pytest.raises(BatchError, match="could not encode the image") as raised:
            llm.chat([{"role": "user", "content": other}], params, use_tqdm=False)
        assert isinstance(raised.value.errors[0], MediumFailed)


def test_media_are_not_counted_by_tokenize(http: httpx.Client) -> None:
    messages = chat(*PROMPTS[0])["messages"]
    response = http.post("/tokenize", json={"model": "sees", "messages": messages})
    assert response.status_code == 400 and "usage" in response.json()["error"]["message"]


def test_sounds_are_read_as_in_llm_chat(tmp_path: Path) -> None:
    pytest.importorskip("soundfile")
    (tmp_path / "chat_template.jinja").write_text(test_hearing.TEMPLATE)
    data = base64.b64encode(wav(tone(0.3))).decode()
    part = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    messages = [{"role": "user", "content": [part, words("what?")]}]
    with test_hearing.saved("qwen2_audio", tmp_path).llm() as llm:
        prompt = Preparing(llm._session).prompt_of({"messages": messages})
        assert isinstance(prompt["multi_modal_data"]["audio"][0], bytes), "not read by the engine"
        [over_http] = llm.generate(prompt, test_hearing.SHORT, use_tqdm=False)
        [direct] = llm.chat(messages, test_hearing.SHORT, use_tqdm=False)
    assert over_http.prompt_token_ids == direct.prompt_token_ids
    assert over_http.outputs[0].token_ids == direct.outputs[0].token_ids


def test_an_image_waits_in_the_queue_as_little_text() -> None:
    queueing = Queueing(100, 1 << 20)
    row: dict[str, Any] = {
        "messages": [{"content": [image("data:image/png;base64," + "A" * (6 << 20))]}]
    }
    row |= {"params": {}}
    for_key = ("interactive", 1, "key")
    with queueing.slot(row, *for_key), queueing.slot(row, *for_key):
        assert not queueing.totals()["rejected"]
