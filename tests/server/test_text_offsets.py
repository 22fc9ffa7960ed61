"""`text_offset` of completions: where each token's text begins in the text that was returned."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import httpx
import pytest

from tests.server.serving import client, serving
from tests.tiny_llm import CONFIG

TEXT = "/v1/completions"


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Random weights draw any token: parts of characters, bytes that are none, special tokens."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    options: dict[str, Any] = {"tokenizer": "smollm2", "load_format": "dummy", "dtype": "float32"}
    options |= {"kv_cache_memory_bytes": 8 << 20}
    with (
        serving(folder / "data", str(folder), names=("tiny",), options=options) as server,
        client(server) as made,
    ):
        yield made


def asked(http: httpx.Client, **more: Any) -> tuple[str, dict[str, list[Any]]]:
    """(text, logprobs) of an answer, which a stream must repeat."""
    body = {"model": "tiny", "prompt": "Sky \U0001f984", "temperature": 2, "logprobs": 1, **more}
    body = {"max_tokens": 50, "seed": 1, **body}
    whole = http.post(TEXT, json=body).json()["choices"][0]
    lines = http.post(TEXT, json={**body, "stream": True}).text.splitlines()
    chunks = [json.loads(line[6:])["choices"][0] for line in lines if line.startswith("data: {")]
    parts = [chunk["logprobs"] for chunk in chunks if chunk["logprobs"]]
    streamed = {name: [one for part in parts for one in part[name]] for name in whole["logprobs"]}
    assert "".join(chunk["text"] for chunk in chunks) == whole["text"]
    assert streamed == whole["logprobs"]
    return whole["text"], whole["logprobs"]


# Bytes of which most are no character, and parts of emojis.
BYTES = {"logit_bias": {str(token): 100 for token in range(100, 360)}}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {**BYTES, "temperature": 1},
        {"echo": True},
        {**BYTES, "echo": True, "add_special_tokens": True},
        {"logit_bias": {"2": 100, "17": 100}, "ignore_eos": True, "temperature": 1},
        {"logit_bias": {"2": 100, "17": 100}, "skip_special_tokens": False, "ignore_eos": True},
        {"stop": ["e", "\ufffd", "a"]},
        {**BYTES, "stop": ["\ufffd\ufffd\ufffd"], "temperature": 1},
        {"stop": ["e", "a"], "include_stop_str_in_output": True},
        {"logit_bias": {"2": 6}, "max_tokens": 60},
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_offsets_are_places_of_the_text(
    http: httpx.Client, more: dict[str, Any], seed: int
) -> None:
    text, scores = asked(http, **more, seed=seed)
    offsets, tokens = scores["text_offset"], scores["tokens"]
    assert len(offsets) == len(tokens) and offsets
    assert offsets[0] == 0 and all(a <= b for a, b in pairwise([*offsets, len(text)]))
    told = 0
    for begin, end, token in zip(offsets, [*offsets[1:], len(text)], tokens, strict=True):
        if end > begin and token and "\ufffd" not in text[begin:end]:
            assert token.startswith(text[begin:end]) or end == len(text)
            told += 1
    assert told or not text.strip("\ufffd")
