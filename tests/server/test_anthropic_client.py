"""Anthropic's own client, and LangChain's for it, against a real server with the default model:
`pip install anthropic langchain-anthropic` beside quire, then this file with -W ignore (what they
leave open is theirs)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
from pydantic import BaseModel

from quire.server.serve import Serving
from tests.server.serving import KEY, serving

pytestmark = [
    pytest.mark.skipif(find_spec("anthropic") is None, reason="anthropic is not installed"),
    pytest.mark.filterwarnings("ignore"),
]
MODEL = "smollm2"
ASK = [{"role": "user", "content": "What is the capital of France? One word."}]
GREEDY: Any = {"temperature": 0}
TOOL = {
    "name": "get_weather",
    "description": "The weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
PNG = {"type": "base64", "media_type": "image/png", "data": "AAAA"}


class City(BaseModel):
    name: str
    big: bool


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    options = {"kv_cache_memory_bytes": 64 << 20, "max_model_len": 1024, "max_num_seqs": 8}
    with serving(tmp_path_factory.mktemp("server"), MODEL, options=options) as made:
        yield made


@pytest.fixture
def client(server: Serving) -> Iterator[Any]:
    made = import_module("anthropic").Anthropic(
        base_url=server.address, api_key=KEY, max_retries=0, _strict_response_validation=True
    )
    with made:
        yield made


def asked(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": ASK, "max_tokens": 8, "extra_body": GREEDY, **more}


def test_a_message_whole_and_streamed(client: Any) -> None:
    whole = client.messages.create(**asked(system="Be short.", metadata={"user_id": "u"}))
    assert "Paris" in whole.content[0].text and whole._request_id.startswith("req_")
    with client.messages.stream(**asked(system="Be short.")) as stream:
        texts = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert texts == final.content[0].text == whole.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    kinds = [event.type for event in client.messages.create(**asked(stream=True))]
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop"


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_tools_there_and_back(client: Any, choice: dict[str, Any]) -> None:
    tools = {"tools": [TOOL], "tool_choice": {**choice, "disable_parallel_tool_use": True}}
    whole = client.messages.create(**asked(**tools, max_tokens=60))
    with client.messages.stream(**asked(**tools, max_tokens=60)) as stream:
        streamed = stream.get_final_message()
    for made in (whole, streamed):
        [call] = made.content
        assert (call.type, call.name, made.stop_reason) == ("tool_use", "get_weather", "tool_use")
        assert call.input["city"] in ("Paris", "Rome")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "It is sunny."}
    turns = [*ASK, {"role": "assistant", "content": streamed.content}]
    turns.append({"role": "user", "content": [result]})
    assert client.messages.create(**asked(messages=turns)).content[0].type == "text"


def test_a_runner_of_tools_gets_along_without_a_thread(client: Any) -> None:
    anthropic = import_module("anthropic")

    def get_weather(city: str) -> str:
        """The weather of a city."""
        return f"sunny in {city}"

    forced = {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    runner = client.beta.messages.tool_runner(
        **asked(tools=[anthropic.beta_tool(get_weather)], max_iterations=2, max_tokens=60, **forced)
    )
    assert [made.content[0].type for made in runner] == ["tool_use", "tool_use"]


def test_formats_are_parsed(client: Any) -> None:
    made = client.messages.parse(**asked(max_tokens=60, output_format=City))
    assert isinstance(made.parsed_output, City)
    with client.messages.stream(**asked(max_tokens=60, output_format=City)) as stream:
        assert stream.get_final_message().parsed_output == made.parsed_output


def test_what_else_clients_ask_for(client: Any) -> None:
    counted = client.messages.count_tokens(model=MODEL, messages=ASK).input_tokens
    usage = client.messages.create(**asked(max_tokens=1)).usage
    assert usage.input_tokens + usage.cache_read_input_tokens == counted
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).max_input_tokens == 1024
    for thinking in ({"type": "enabled", "budget_tokens": 1024}, {"type": "disabled"}):
        assert client.messages.create(**asked(thinking=thinking)).content[0].type == "text"
    begun = [*ASK, {"role": "assistant", "content": "The capital is"}]
    assert client.messages.create(**asked(messages=begun)).content[0].text.startswith(" Paris")
    edits = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    made = client.beta.messages.create(**asked(betas=["x"], context_management=edits))
    assert made.content[0].type == "text"


def test_a_batch_is_made_read_listed_and_deleted(client: Any) -> None:
    batches = client.messages.batches
    params = {"model": MODEL, "messages": ASK, "max_tokens": 8, "temperature": 0}
    wrong = {**params, "model": "claude"}
    requests = [{"custom_id": "a", "params": params}, {"custom_id": "b", "params": wrong}]
    made = batches.create(requests=requests)
    deadline = time.monotonic() + 60
    while (batch := batches.retrieve(made.id)).processing_status != "ended":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert (batch.request_counts.succeeded, batch.request_counts.errored) == (1, 1)
    results = {line.custom_id: line.result for line in batches.results(made.id)}
    assert "Paris" in results["a"].message.content[0].text
    assert results["b"].error.error.type == "not_found_error"
    later = batches.create(requests=requests)
    batches.cancel(later.id)
    assert [found.id for found in batches.list(limit=1)] == [later.id, made.id]
    assert [found.id for found in batches.list(limit=1, before_id=made.id)] == [later.id]
    assert batches.delete(made.id).type == "message_batch_deleted"
    with pytest.raises(import_module("anthropic").NotFoundError):
        batches.retrieve(made.id)


@pytest.mark.parametrize(
    ("kind", "more", "words"),
    [
        ("BadRequestError", {"messages": [{"role": "user", "content": "x y " * 999}]}, "too long"),
        (
            "BadRequestError",
            {"messages": [{"role": "user", "content": [{"type": "image", "source": PNG}]}]},
            "text alone",
        ),
        ("BadRequestError", {"extra_body": {"temprature": 1}}, "temperature"),
        ("NotFoundError", {"model": "claude"}, "smollm2"),
        ("APIStatusError", {"system": "x" * (9 << 20)}, "8,388,608"),
    ],
)
def test_refusals_are_the_clients_own(client: Any, kind: str, more: Any, words: str) -> None:
    error = getattr(import_module("anthropic"), kind)
    with pytest.raises(error, match=words) as caught:
        client.messages.create(**asked(**more))
    assert caught.value.request_id.startswith("req_")
    with pytest.raises(error, match=words):
        client.messages.create(**asked(**more, stream=True))
    with pytest.raises(import_module("anthropic").AuthenticationError, match="API key"):
        client.with_options(api_key="no").messages.create(**asked())


def test_many_at_once(server: Serving) -> None:
    async def one(client: Any) -> str:
        async with client.messages.stream(**asked()) as stream:
            return str(await stream.get_final_text())

    async def many() -> list[str]:
        made = import_module("anthropic").AsyncAnthropic(base_url=server.address, auth_token=KEY)
        async with made as client:
            return await asyncio.gather(*(one(client) for _ in range(12)))

    texts = asyncio.run(many())
    assert len(set(texts)) == 1 and "Paris" in texts[0]


@pytest.mark.skipif(find_spec("langchain_anthropic") is None, reason="it is not installed")
def test_langchain(server: Serving) -> None:
    made = import_module("langchain_anthropic").ChatAnthropic(
        model=MODEL, base_url=server.address, api_key=KEY, max_tokens=60, temperature=0
    )
    assert "Paris" in made.invoke(ASK[0]["content"]).content
    assert "Paris" in "".join(str(part.text) for part in made.stream(ASK[0]["content"]))
    forced = made.bind_tools([TOOL], tool_choice="any").invoke(ASK[0]["content"])
    assert forced.tool_calls[0]["name"] == "get_weather"
    assert isinstance(made.with_structured_output(City).invoke("Name a city."), City)
