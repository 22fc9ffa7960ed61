"""Servers of models that pool: embeddings, ranks, scores and classes as LLM's methods give."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from openai import OpenAI

from quire.server.serve import Serving
from tests.pooling.tiny import ENCODERS, open_llm, texts, write_model
from tests.server.serving import KEY, client, serving, until

OPTIONS = {"dtype": "float32", "kv_cache_memory_bytes": 8 << 20}
PAIRS = [("w1 w2", "w3"), ("w1 w2", "w4 w5"), ("w1 w2", "w1 w2")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models")
    write_model(made / "embeds", ENCODERS["bert"], matryoshka_dimensions=[16, 48])
    write_model(made / "ranks", ENCODERS["bert"], "classes", num_labels=1)
    return made


@pytest.fixture(scope="module")
def embeds(folder: Path) -> Iterator[Serving]:
    with serving(folder / "a", str(folder / "embeds"), names=("m",), options=OPTIONS) as made:
        yield made


@pytest.fixture(scope="module")
def ranks(folder: Path) -> Iterator[Serving]:
    with serving(folder / "b", str(folder / "ranks"), names=("m",), options=OPTIONS) as made:
        yield made


def post(server: Serving, path: str, **body: Any) -> httpx.Response:
    with client(server) as http:
        return http.post(path, json={"model": "m", **body})


def data(server: Serving, path: str, **body: Any) -> list[dict[str, Any]]:
    response = post(server, path, **body)
    assert response.status_code == 200, response.text
    found: list[dict[str, Any]] = response.json()["data"]
    assert [one["index"] for one in found] == list(range(len(found)))
    return found


def refused(response: httpx.Response, *words: str, param: str | None = None) -> None:
    error = response.json()["error"]
    assert response.status_code == 400 and error["param"] == param, response.text
    assert all(word in error["message"] for word in words), error["message"]


def test_embeddings_are_those_of_the_llm(embeds: Serving, folder: Path) -> None:
    some = texts(6)
    with open_llm(folder / "embeds") as llm:
        expected = [one.outputs.embedding for one in llm.embed(some, use_tqdm=False)]
        tokens = [len(one.prompt_token_ids) for one in llm.embed(some, use_tqdm=False)]
    response = post(embeds, "/v1/embeddings", input=some).json()
    assert [one["embedding"] for one in response["data"]] == expected
    assert response["usage"] == {"prompt_tokens": sum(tokens), "total_tokens": sum(tokens)}
    coded = data(embeds, "/v1/embeddings", input=some, encoding_format="base64")
    for one, numbers in zip(coded, expected, strict=True):
        read = np.frombuffer(base64.b64decode(one["embedding"]), "<f4")
        assert read.tolist() == numbers


def test_the_official_client_embeds(embeds: Serving) -> None:
    at: Any = {"base_url": f"{embeds.address}/v1", "api_key": KEY, "max_retries": 0}
    with OpenAI(**at, _strict_response_validation=True) as strict:
        whole = strict.embeddings.create(model="m", input=["w1", "w2 w3"], encoding_format="float")
    with OpenAI(**at) as usual:  # asks for base64, which its own strict check would refuse
        short = usual.embeddings.create(model="m", input=[5, 6, 7], dimensions=16)
    assert [len(one.embedding) for one in (*whole.data, *short.data)] == [48, 48, 16]
    assert whole.usage.prompt_tokens == 7 and short.usage.prompt_tokens == 3
    np.testing.assert_allclose(np.linalg.norm(short.data[0].embedding), 1, rtol=1e-5)


def test_token_ids_and_texts_are_the_same(embeds: Serving) -> None:
    with client(embeds) as http:
        ids = http.post("/tokenize", json={"prompt": "w1 w2"}).json()["tokens"]
    [one, other] = data(embeds, "/v1/embeddings", input=[ids, ids])
    [text] = data(embeds, "/v1/embeddings", input="w1 w2")
    assert one["embedding"] == other["embedding"] == text["embedding"]


def test_more_texts_than_may_wait_in_a_queue(embeds: Serving) -> None:
    found = data(embeds, "/v1/embeddings", input=[f"w{i % 60}" for i in range(1500)])
    assert found[3]["embedding"] == found[63]["embedding"] != found[4]["embedding"]


@pytest.mark.parametrize(
    ("body", "param", "word"),
    [
        ({"input": "w1 " * 100}, "input", "maximum context length is 64"),
        ({"input": []}, "input", "list"),
        ({"input": [[]]}, "input", "list"),
        ({"input": ["x", 5]}, "input", "list"),
        ({"input": ["x"] * 2049}, "input", "2,048"),
        ({"input": [5, 600]}, "input", "600"),
        ({"input": [-1]}, "input", "-1"),
        ({"input": "x", "dimensions": 7}, "dimensions", "16, 48"),
        ({"input": "x", "dimensions": 0}, "dimensions", "0"),
        ({"input": "x", "encoding_format": "int8"}, "encoding_format", "base64"),
        ({"input": "x", "prompt_name": "none such"}, "prompt_name", "none such"),
    ],
)
def test_what_cannot_be_embedded(
    embeds: Serving, body: dict[str, Any], param: str, word: str
) -> None:
    refused(post(embeds, "/v1/embeddings", **body), word, param=param)


def test_long_texts_are_cut_where_that_is_asked(embeds: Serving) -> None:
    long = "w1 " * 100
    [cut] = data(embeds, "/v1/embeddings", input=long, truncate_prompt_tokens=-1)
    [same] = data(embeds, "/v1/embeddings", input="w1 " * 62)
    assert cut["embedding"] == same["embedding"]
    book = "w1 " * 400_000
    [cut] = data(embeds, "/v1/embeddings", input=book, truncate_prompt_tokens=-1)
    assert cut["embedding"] == same["embedding"]
    assert "far more" in post(embeds, "/v1/embeddings", input=book).json()["error"]["message"]


@pytest.mark.parametrize("kind", ["embeds", "ranks"])
def test_ranks_and_scores_are_those_of_the_llm(
    kind: str, folder: Path, request: pytest.FixtureRequest
) -> None:
    server: Serving = request.getfixturevalue(kind)
    documents = [other for _, other in PAIRS]
    with open_llm(folder / kind) as llm:
        found = llm.score("w1 w2", documents, use_tqdm=False)
    expected = [one.outputs.score for one in found]
    scored = data(server, "/v1/score", text_1="w1 w2", text_2=documents)
    np.testing.assert_allclose([one["score"] for one in scored], expected, rtol=1e-6)
    order = sorted(range(3), key=lambda i: -expected[i])
    body = post(server, "/v1/rerank", query="w1 w2", documents=documents, top_n=2).json()
    assert [one["index"] for one in body["results"]] == order[:2]
    assert body["results"][0]["document"] == {"text": documents[order[0]]}
    second = post(server, "/v2/rerank", query="w1 w2", documents=[{"text": d} for d in documents])
    told = [(one["index"], set(one)) for one in second.json()["results"]]
    assert told == [(i, {"index", "relevance_score"}) for i in order]
    assert second.json()["meta"]["tokens"]["input_tokens"] > 0
    short = post(server, "/rerank", query="w1 w2", documents=documents, return_documents=False)
    assert [one["index"] for one in short.json()["results"]] == order
    refused(post(server, "/v1/rerank", query="x", documents=[1]), "documents[0]", param="documents")
    refused(post(server, "/v1/score", text_1=["a", "b"], text_2=["c"]), "text_1", param="text_1")


def test_classes_and_whatever_a_model_pools(ranks: Serving, embeds: Serving, folder: Path) -> None:
    with open_llm(folder / "ranks") as llm:
        [expected] = llm.classify("w1 w2", use_tqdm=False)
    [one] = data(ranks, "/classify", input="w1 w2")
    assert one["probs"] == expected.outputs.probs and one["num_classes"] == 1
    assert one["label"] == "LABEL_0"
    [raw] = data(ranks, "/pooling", input="w1 w2", use_activation=False)
    np.testing.assert_allclose(1 / (1 + np.exp(-raw["data"][0])), one["probs"][0], rtol=1e-5)
    [states] = data(embeds, "/pooling", input="w1 w2", task="token_embed")
    assert np.array(states["data"]).shape == (4, 48)
    assert data(embeds, "/pooling", input="w1")[0]["data"]


def test_each_model_refuses_what_it_does_not_do(
    embeds: Serving, ranks: Serving, tmp_path: Path
) -> None:
    asked = {"messages": [{"role": "user", "content": "w1"}]}
    refused(post(embeds, "/v1/chat/completions", **asked), "generate", "/v1/embeddings")
    refused(post(ranks, "/v1/completions", prompt="w1"), "generate", "/classify")
    refused(post(ranks, "/v1/responses", input="w1"), "generate")
    refused(post(embeds, "/v1/score", query="a", items=["b"], label_token_ids=[1]), "generate")
    refused(post(ranks, "/v1/embeddings", input="w1"), "embed", "/classify")
    refused(post(embeds, "/classify", input="w1"), "classify", "/v1/embeddings")
    with serving(tmp_path, names=("m",)) as writes:
        way = "/v1/chat/completions"
        refused(post(writes, "/v1/embeddings", input="w1"), "embed", way)
        refused(post(writes, "/classify", input="w1"), "classify", way)
        refused(post(writes, "/pooling", input="w1"), "embed", way)
        refused(post(writes, "/v1/rerank", query="a", documents=["b"]), "embed", way)
        refused(post(writes, "/v1/score", text_1="a", text_2="b"), "embed", way)


def test_a_batch_of_embeddings(embeds: Serving) -> None:
    bodies: list[dict[str, Any]] = [
        {"input": "w1 w2", "encoding_format": "base64"},
        {"input": ["w3", "w4"]},
        {"input": "w1 " * 100},
    ]
    lines = [
        {
            "custom_id": str(i),
            "method": "POST",
            "url": "/v1/embeddings",
            "body": {"model": "m", **body},
        }
        for i, body in enumerate(bodies)
    ]
    with client(embeds) as http:
        written = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        form = {"purpose": "batch"}
        file = http.post("/v1/files", files={"file": ("in.jsonl", written)}, data=form).json()
        asked = {"input_file_id": file["id"], "endpoint": "/v1/embeddings"}
        made = http.post("/v1/batches", json={**asked, "completion_window": "1h"}).json()

        def batch() -> dict[str, Any]:
            found: dict[str, Any] = http.get(f"/v1/batches/{made['id']}").json()
            return found

        until(lambda: batch()["status"] in ("completed", "failed"))
        ended = batch()
        assert ended["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
        assert ended["usage"]["input_tokens"] == 4 + 6 and ended["usage"]["output_tokens"] == 0
        output = http.get(f"/v1/files/{ended['output_file_id']}/content").content
        [one, two] = [json.loads(line)["response"]["body"] for line in output.splitlines()]
        errors = http.get(f"/v1/files/{ended['error_file_id']}/content").content
    [coded] = data(embeds, "/v1/embeddings", **bodies[0])
    assert one["data"][0]["embedding"] == coded["embedding"]
    assert [entry["index"] for entry in two["data"]] == [0, 1]
    assert b"context_length_exceeded" in errors
