"""A model that thinks, before an answer that has a format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.inputs.makers import train_byte_bpe
from tests.server.serving import client, serving
from tests.tiny_llm import CONFIG

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "go", "parameters": CITY}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
# As Qwen's, where thoughts are left to the model, and as those of R1, which begin them.
TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% endfor %}\n"
    "{% if opened is defined %}<think>\n{% elif enable_thinking is defined %}<think></think>\n"
    "{% endif %}"
)


@pytest.fixture(scope="module")
def tags() -> dict[str, int]:
    """The tokens that open and close thoughts, and the likeliest wherever they may come."""
    return {}


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory, tags: dict[str, int]) -> Iterator[httpx.Client]:
    folder: Path = tmp_path_factory.mktemp("thinking")
    tokenizer = train_byte_bpe(digits=False)
    tokenizer.add_tokens(["<think>", "</think>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    for name in ("<think>", "</think>"):
        tags[str(tokenizer.token_to_id(name))] = 100
    named = {"eos_token": "</s>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    config = {**CONFIG, "vocab_size": tokenizer.get_vocab_size()}
    (folder / "config.json").write_text(json.dumps(config))
    options = {"load_format": "dummy", "dtype": "float32", "kv_cache_memory_bytes": 8 << 20}
    with (
        serving(folder / "data", str(folder), names=("tiny",), options=options) as server,
        client(server) as made,
    ):
        yield made


def ask(http: httpx.Client, tags: dict[str, int], **more: Any) -> tuple[str, str, list[str]]:
    """(reasoning, content, arguments of calls) of the answer, which a stream must repeat."""
    messages = [{"role": "user", "content": "Where?"}]
    usual = {"model": "tiny", "temperature": 0, "max_tokens": 150, "logit_bias": tags}
    body = {"messages": messages, **usual, **more}
    whole = http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
    lines = http.post("/v1/chat/completions", json={**body, "stream": True}).text.splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    found = [call["function"]["arguments"] for call in whole.get("tool_calls", ())]
    for name in ("reasoning_content", "content"):
        streamed = "".join(delta.get(name) or "" for delta in deltas)
        assert streamed == (whole.get(name) or "")
    assert [c["function"]["arguments"] for d in deltas for c in d.get("tool_calls", ())] == found
    return whole.get("reasoning_content"), whole["content"], found


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize(
    "more",
    [
        {"response_format": FORMAT},
        {"response_format": FORMAT, "tools": [TOOL]},
        {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "go"}}},
    ],
)
def test_it_thinks_and_then_keeps_to_the_format(
    http: httpx.Client, tags: dict[str, int], more: dict[str, Any], opened: bool
) -> None:
    if opened:
        more = {**more, "chat_template_kwargs": {"opened": True}}
    reasoning, content, calls = ask(http, tags, **more)
    assert reasoning == ""  # opened, and closed at once: no token is likelier
    assert all(json.loads(text) == {"city": "Paris"} for text in calls or [content])
    assert calls or "tool_choice" not in more


def test_it_does_not_think_where_that_is_turned_off(
    http: httpx.Client, tags: dict[str, int]
) -> None:
    reasoning, content, _ = ask(http, tags, response_format=FORMAT, reasoning_effort="none")
    assert reasoning is None and json.loads(content) == {"city": "Paris"}


def test_a_choice_behind_opened_thoughts_is_the_answer(
    http: httpx.Client, tags: dict[str, int]
) -> None:
    opened = {"opened": True}
    for more in ({"guided_choice": ["left", "right"]}, {"guided_grammar": 'root ::= "left"'}):
        reasoning, content, _ = ask(http, {}, chat_template_kwargs=opened, **more)
        assert reasoning is None and content in ("left", "right")


def message(http: httpx.Client, **more: Any) -> dict[str, Any]:
    """A message whose thoughts the prompt opens, unless they are turned off."""
    opened = {"opened": True} if more.get("thinking") != {"type": "disabled"} else {}
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Where?"}], "seed": 7}
    body |= {"max_tokens": 40, "chat_template_kwargs": opened, **more}
    answer = http.post("/v1/messages", json=body)
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    lines = http.post("/v1/messages", json={**body, "stream": True}).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    kinds = [e["content_block"]["type"] for e in events if e["type"] == "content_block_start"]
    assert kinds == [block["type"] for block in made["content"]]
    for name in ("thinking", "text"):
        deltas = [e["delta"].get(name, "") for e in events if e["type"] == "content_block_delta"]
        assert "".join(deltas) == "".join(block.get(name, "") for block in made["content"])
    return made


def test_thoughts_of_a_message_are_blocks_within_their_budget(http: httpx.Client) -> None:
    seed = 7
    for budget in (3, 12):
        made = message(http, thinking={"type": "enabled", "budget_tokens": budget}, seed=seed)
        assert [block["type"] for block in made["content"]] == ["thinking", "text"]
        assert budget <= made["usage"]["output_tokens_details"]["thinking_tokens"] <= budget + 1
    assert message(http, seed=seed)["usage"]["output_tokens_details"]["thinking_tokens"] == 40
    hidden = {"type": "enabled", "budget_tokens": 12, "display": "omitted"}
    assert message(http, thinking=hidden, seed=seed)["content"] == made["content"][1:]


def test_thoughts_of_a_message_are_turned_off_by_the_template(http: httpx.Client) -> None:
    made = message(http, thinking={"type": "disabled"})
    assert [block["type"] for block in made["content"]] == ["text"]
    assert made["usage"]["output_tokens_details"]["thinking_tokens"] == 0
