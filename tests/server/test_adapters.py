"""Adapters that are loaded and unloaded while a server runs, a real engine behind it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

import tests.backends.triton.conftest  # noqa: F401 - before Transformers imports Triton
from quire import SamplingParams
from quire.server.serve import Serving
from tests.adapters.peft_files import make_peft, named, open_llm, random_model
from tests.parity.families import FAMILIES
from tests.server.serving import KEY, OTHER_KEY, client, serving, until

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
OPTIONS: dict[str, Any] = {
    "dtype": "float32",
    "device": "cpu",
    "kv_cache_memory_bytes": 1 << 22,
    "max_num_seqs": 4,
    "skip_tokenizer_init": True,
    "enable_lora": True,
    "max_loras": 2,
}
PROMPT = [5, 6, 7, 8]
LONG = 500  # tokens: some ten times as long as unloading takes


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, a folder with two adapters, and one outside of it."""
    home = tmp_path_factory.mktemp("home")
    model = random_model(FAMILIES["qwen3"])
    model.save_pretrained(home / "base")
    for seed, name in enumerate(("allowed/one", "allowed/two", "elsewhere"), start=1):
        make_peft(model, ("q_proj", "o_proj", "down_proj"), seed=seed).save(home / name)
    (home / "allowed" / "way-out").symlink_to(home / "elsewhere")
    wrong = make_peft(random_model(FAMILIES["llama"]), ("q_proj",), rank=17)
    wrong.save(home / "allowed" / "too-high")
    return home


@pytest.fixture(scope="module")
def wanted(home: Path) -> dict[str, list[int]]:
    """What each adapter answers, and the base."""
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    found = {}
    with open_llm(home / "base", device="cpu") as llm:
        for name in ("base", "allowed/one", "allowed/two"):
            request = None if name == "base" else named(home / name)
            (made,) = llm.generate(PROMPT, params, use_tqdm=False, lora_request=request)
            found[name.removeprefix("allowed/")] = list(made.outputs[0].token_ids)
    assert len({tuple(ids) for ids in found.values()}) == 3
    return found


@pytest.fixture
def server(home: Path, tmp_path: Path) -> Iterator[Serving]:
    settings = {"names": ("base",), "options": OPTIONS, "lora_folder": home / "allowed"}
    with serving(tmp_path, str(home / "base"), keys=(KEY, OTHER_KEY), **settings) as made:
        yield made


def asked(http: httpx.Client, model: str, max_tokens: int = 8) -> httpx.Response:
    body = {"model": model, "prompt": PROMPT, "max_tokens": max_tokens, "temperature": 0}
    more = {"ignore_eos": True, "return_token_ids": True}
    return http.post("/v1/completions", json={**body, **more})


def ids(http: httpx.Client, model: str, max_tokens: int = 8) -> list[int]:
    found = asked(http, model, max_tokens)
    assert found.status_code == 200, found.text
    return list(found.json()["choices"][0]["token_ids"])


def names(http: httpx.Client) -> dict[str, str | None]:
    return {one["id"]: one["parent"] for one in http.get("/v1/models").json()["data"]}


def load(http: httpx.Client, name: str, path: str, **more: Any) -> httpx.Response:
    return http.post(LOAD, json={"lora_name": name, "lora_path": path, **more})


def test_an_adapter_comes_and_goes_while_the_server_runs(
    server: Serving, wanted: dict[str, list[int]], home: Path
) -> None:
    with client(server) as http, client(server, OTHER_KEY) as other:
        assert asked(http, "mine").status_code == 404
        found = load(http, "mine", "one")
        assert (found.status_code, found.text) == (
            200,
            "Success: LoRA adapter 'mine' added successfully.",
        )
        assert names(other) == {"base": None, "mine": "base"}
        assert ids(http, "mine") == ids(other, "mine") == wanted["one"]
        assert ids(http, "base") == wanted["base"]
        # Another in its place: by whoever loaded it alone.
        assert load(http, "mine", "two").status_code == 400
        assert load(other, "mine", "two", load_inplace=True).status_code == 400
        assert load(http, "mine", str(home / "allowed/two"), load_inplace=True).status_code == 200
        assert ids(http, "mine") == wanted["two"]
        # An engine that is started again has it still.
        life = server.bridge._life
        assert life is not None
        life.kill()
        until(lambda: server.bridge.stats().restarts == 1 and server.bridge.state == "ready", 60)
        assert ids(http, "mine") == wanted["two"]
        assert other.post(UNLOAD, json={"lora_name": "mine"}).status_code == 404
        assert http.post(UNLOAD, json={"lora_name": "mine", "lora_int_id": 1}).status_code == 200
        assert names(http) == {"base": None} and asked(http, "mine").status_code == 404
        assert http.post(UNLOAD, json={"lora_name": "mine"}).status_code == 404
        # A row that was on its way meanwhile is not the base's to answer.
        server.bridge.adapters.put("mine", None)  # type: ignore[arg-type]
        late = asked(http, "mine")
        assert late.status_code == 400 and "was unloaded" in late.text
        server.bridge.adapters.drop("mine")


def test_what_runs_goes_on_with_an_adapter_that_is_unloaded(
    server: Serving, wanted: dict[str, list[int]]
) -> None:
    with client(server) as http, ThreadPoolExecutor(1) as beside:
        load(http, "mine", "one")
        whole, life = ids(http, "mine", max_tokens=LONG), server.bridge._life
        assert life is not None and whole[:8] == wanted["one"]
        ended = life.board.rows()  # the board names a row until others run
        running = beside.submit(ids, http, "mine", max_tokens=LONG)
        until(lambda: life.board.rows() not in ([], ended))
        assert http.post(UNLOAD, json={"lora_name": "mine"}).status_code == 200
        assert running.result() == whole


@pytest.mark.parametrize(
    ("name", "path", "words"),
    [
        ("a", "../elsewhere", "no directory in the folder"),
        ("a", "way-out", "no directory in the folder"),
        ("a", "owner/name", "no directory in the folder"),
        ("a", ".", "no directory in the folder"),
        ("a", "one/adapter_config.json", "no directory in the folder"),
        ("a", "\0", "no directory in the folder"),
        ("a", "x" * 5000, "no directory in the folder"),
        ("a", "too-high", "max_lora_rank"),
        ("base", "one", "was started with the name"),
        ("", "one", "1 to 200 characters"),
        ("a\n", "one", "can be shown"),
    ],
)
def test_what_may_not_be_loaded_is_refused(
    refusing: httpx.Client, home: Path, name: str, path: str, words: str
) -> None:
    found = load(refusing, name, path)
    assert found.status_code == 400 and words in found.text, found.text
    assert str(home) not in found.text
    assert names(refusing) == {"base": None}


@pytest.fixture(scope="module")
def refusing(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    settings = {"names": ("base",), "options": OPTIONS, "lora_folder": home / "allowed"}
    folder = tmp_path_factory.mktemp("refusing")
    with serving(folder, str(home / "base"), **settings) as server, client(server) as http:
        yield http


def test_files_that_go_away_cost_their_own_requests(
    refusing: httpx.Client, home: Path, wanted: dict[str, list[int]]
) -> None:
    shutil.copytree(home / "allowed/one", home / "allowed/brief")
    assert load(refusing, "brief", "brief").status_code == 200
    shutil.rmtree(home / "allowed/brief")
    assert asked(refusing, "brief").status_code == 400
    assert ids(refusing, "base") == wanted["base"]
    assert refusing.post(UNLOAD, json={"lora_name": "brief"}).status_code == 200


def test_without_a_folder_there_is_nothing_to_ask(tmp_path: Path) -> None:
    with serving(tmp_path) as server, client(server) as http:
        assert load(http, "a", "b").status_code == 404
        assert LOAD not in http.get("/openapi.json").json()["paths"]
