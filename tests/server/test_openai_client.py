"""The official client against a real server with the default model: what people will run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from quire import LLM, BeamSearchParams
from quire.openai_api.bodies import call_id
from quire.server.serve import Serving
from tests.server.serving import KEY, serving

MODEL = "smollm2"
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}, "unit": {"enum": ["C", "F"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
OPTIONS: Any = {"kv_cache_memory_bytes": 64 << 20, "max_model_len": 1024, "max_num_seqs": 8}
ASK = [{"role": "user", "content": "What is the capital of France? One word."}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("server")
    with serving(folder, MODEL, options=OPTIONS) as made:
        yield made


@pytest.fixture
def client(server: Serving) -> Iterator[OpenAI]:
    with OpenAI(
        base_url=f"{server.address}/v1",
        api_key=KEY,
        max_retries=0,
        _strict_response_validation=True,
    ) as made:
        yield made


def ask(client: OpenAI, **more: Any) -> Any:
    return client.chat.completions.create(
        model=MODEL, messages=ASK, **{"temperature": 0, "max_tokens": 8, **more}
    )


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("other/model")
    assert caught.value.code == "model_not_found"


def test_a_chat(client: OpenAI) -> None:
    made = ask(client)
    assert "Paris" in made.choices[0].message.content
    assert made.usage.prompt_tokens > 10
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=ASK, max_tokens=1)
    assert raw.headers["x-request-id"].startswith("req_")


def test_a_stream_with_usage_and_two_choices(client: OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL,
        messages=ASK,
        n=2,
        temperature=1,
        seed=5,
        max_tokens=8,
        stream_options={"include_usage": True},
    ) as stream:
        final: Any = stream.until_done().current_completion_snapshot
    whole = ask(client, n=2, temperature=1, seed=5)
    texts = [choice.message.content for choice in whole.choices]
    assert [choice.message.content for choice in final.choices] == texts
    assert final.usage.completion_tokens == whole.usage.completion_tokens


def test_logprobs(client: OpenAI) -> None:
    made = ask(client, logprobs=True, top_logprobs=3)
    content = made.choices[0].logprobs.content
    assert len(content) == made.usage.completion_tokens or content[-1].token
    assert all(len(one.top_logprobs) == 3 for one in content)
    assert content[0].token == content[0].top_logprobs[0].token
    assert content[0].logprob == content[0].top_logprobs[0].logprob
    chunks = list(ask(client, logprobs=True, top_logprobs=3, stream=True))
    streamed = [
        one
        for chunk in chunks
        if chunk.choices[0].logprobs
        for one in chunk.choices[0].logprobs.content
    ]
    assert [one.token for one in streamed] == [one.token for one in content]


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_weather"}}]
)
@pytest.mark.parametrize("stream", [False, True])
def test_forced_tools_by_grammar(client: OpenAI, choice: Any, stream: bool) -> None:
    asked: dict[str, Any] = {"tools": [TOOL], "tool_choice": choice, "max_tokens": 60}
    asked["parallel_tool_calls"] = False
    if stream:
        with client.chat.completions.stream(
            model=MODEL, messages=ASK, temperature=0, **asked
        ) as made:
            final: Any = made.get_final_completion()
    else:
        final = ask(client, **asked)
    [call] = final.choices[0].message.tool_calls
    assert call.id == call_id(final.id, 0, 0)
    assert call.function.name == "get_weather" and call.id
    assert set(json.loads(call.function.arguments)) == {"city", "unit"}
    assert final.choices[0].finish_reason == "tool_calls"


class City(BaseModel):
    name: str
    big: bool


def test_parse(client: OpenAI) -> None:
    made = client.chat.completions.parse(
        model=MODEL, messages=ASK, temperature=0, max_tokens=60, response_format=City
    )
    assert isinstance(made.choices[0].message.parsed, City)


def test_completions_with_echo_and_logprobs(client: OpenAI) -> None:
    made = client.with_options().completions.create(
        model=MODEL, prompt="The sea is", max_tokens=3, temperature=0, logprobs=2
    )
    scores = made.choices[0].logprobs
    assert len(scores.tokens) == len(scores.token_logprobs) == len(scores.top_logprobs) == 3
    assert "".join(scores.tokens) == made.choices[0].text
    assert scores.text_offset[0] == 0 and scores.text_offset[1] == len(scores.tokens[0])


def test_what_is_wrong_is_said_in_the_clients_own_errors(client: OpenAI, server: Serving) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, extra_body={"guided_jsn": {}})
    assert caught.value.code == "unknown_parameter" and "guided_json" in caught.value.message
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "x y " * 2000}]
        )
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.message.find("This model's maximum context length is 1024 tokens") >= 0
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-4", messages=ASK)
    with (
        pytest.raises(openai.AuthenticationError),
        OpenAI(base_url=f"{server.address}/v1", api_key="sk-none") as stranger,
    ):
        stranger.models.list()


def test_responses_whole_and_streamed(client: Any) -> None:
    asked: Any = {"model": MODEL, "input": ASK[0]["content"], "temperature": 0}
    asked["max_output_tokens"] = 12
    whole = client.responses.create(**asked)
    assert "Paris" in whole.output_text and whole.usage.total_tokens > 12
    with client.responses.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    assert final.output_text == whole.output_text
    parsed = client.responses.parse(
        model=MODEL, input="Name a city.", text_format=City, temperature=0, max_output_tokens=60
    )
    assert isinstance(parsed.output_parsed, City)
    flat = {"type": "function", **TOOL["function"]}  # type: ignore[dict-item]
    called = client.responses.create(**asked, tools=[flat], tool_choice="required")
    assert called.output[0].type == "function_call" or called.status == "incomplete"
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**asked, previous_response_id="resp_1")
    assert caught.value.code == "not_supported"


def post(client: OpenAI, path: str, body: Any) -> Any:
    root = str(client.base_url).removesuffix("/v1/")
    return client.post(f"{root}{path}", body=body, cast_to=httpx.Response).json()


def test_tokens_there_and_back(client: OpenAI, server: Serving) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    info = httpx.get(f"{server.address}/tokenizer_info", headers=headers).json()
    assert info["eos_token"] == "<|im_end|>" and info["eos_token_ids"] == [2]
    made = post(client, "/tokenize", {"prompt": "The sea", "return_token_strs": True})
    assert made["count"] == len(made["tokens"]) == len(made["token_strs"]) == 2
    assert made["max_model_len"] == 1024
    assert post(client, "/detokenize", {"tokens": made["tokens"]}) == {"prompt": "The sea"}
    assert post(client, "/tokenize", {"messages": ASK})["count"] == ask(client).usage.prompt_tokens
    with pytest.raises(openai.BadRequestError) as caught:
        post(client, "/detokenize", {"tokens": [-1]})
    assert caught.value.param == "tokens"
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model=MODEL, input="x")
    assert caught.value.code == "not_supported"


def test_labels_are_scored(client: OpenAI) -> None:
    labels = [post(client, "/tokenize", {"prompt": t})["tokens"][0] for t in (" Paris", " Rome")]
    asked = {"query": "The capital of France is", "items": ["", " not"], "label_token_ids": labels}
    plain = post(client, "/v1/score", asked)["scores"]
    shares = post(client, "/v1/score", {**asked, "apply_softmax": True})["scores"]
    for chances, share in zip(plain, shares, strict=True):
        assert 0 <= sum(chances) <= 1 and sum(share) == pytest.approx(1)
        assert share[0] == pytest.approx(chances[0] / sum(chances), rel=1e-3)
    assert plain[0][0] > plain[0][1]


def test_metrics(client: OpenAI, server: Serving) -> None:
    ask(client)
    headers = {"authorization": f"Bearer {KEY}"}
    text = httpx.get(f"{server.address}/metrics", headers=headers).text
    assert 'quire:request_success_total{engine="0",finished_reason="stop"' in text
    assert 'quire:time_to_first_token_seconds_bucket{engine="0",le="0.001"' in text
    assert "quire:num_requests_running" in text and "vllm:" not in text
    assert 'quire:iteration_tokens_total_bucket{engine="0",le="8.0"' in text


def test_echo_scores_the_prompt_as_the_model_does(client: OpenAI) -> None:
    made = post(
        client,
        "/v1/completions",
        {"model": MODEL, "prompt": "The sea is", "max_tokens": 0, "echo": True, "logprobs": 1},
    )
    [choice] = made["choices"]
    scores = choice["logprobs"]
    assert choice["text"] == "The sea is" and "".join(scores["tokens"]) == "The sea is"
    assert scores["token_logprobs"][0] is None and all(x < 0 for x in scores["token_logprobs"][1:])
    assert made["usage"]["completion_tokens"] == 0
    ids = post(client, "/tokenize", {"prompt": "The sea is"})["tokens"]
    asked = {"model": MODEL, "prompt": ids, "max_tokens": 1, "echo": True, "logprobs": 1}
    again = post(client, "/v1/completions", {**asked, "temperature": 0})["choices"][0]
    assert again["text"].startswith("The sea is") and len(again["logprobs"]["tokens"]) == 4
    assert again["logprobs"]["token_logprobs"][1:3] == scores["token_logprobs"][1:]


def test_the_async_client_streams_many_at_once(server: Serving) -> None:
    async def one(client: AsyncOpenAI, number: int) -> str:
        stream = await client.chat.completions.create(
            model=MODEL, messages=ASK, max_tokens=8, temperature=0, stream=True, user=str(number)
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def many() -> list[str]:
        async with AsyncOpenAI(base_url=f"{server.address}/v1", api_key=KEY) as client:
            return await asyncio.gather(*(one(client, number) for number in range(12)))

    texts = asyncio.run(many())
    assert len(set(texts)) == 1 and "Paris" in texts[0]


def test_reasoning_is_counted(client: OpenAI) -> None:
    asked: Any = {
        "extra_body": {
            "guided_regex": "<think>[a-z ]{9,30}</think>Paris",
            "return_token_ids": True,
        },
        "max_tokens": 60,
    }
    made = ask(client, **asked)
    [choice] = made.choices
    assert choice.message.content == "Paris" and choice.message.reasoning_content
    counted = made.usage.completion_tokens_details.reasoning_tokens
    ids = choice.token_ids
    texts = [
        post(client, "/detokenize", {"tokens": ids[:n]})["prompt"] for n in (counted - 1, counted)
    ]
    assert ["</think>" in text for text in texts] == [False, True]
    options = {"include_usage": True}
    *_, last = ask(client, **asked, stream=True, stream_options=options)
    assert last.usage.completion_tokens_details.reasoning_tokens == counted
    assert ask(client).usage.completion_tokens_details.reasoning_tokens == 0


def test_beams_are_those_of_beam_search(client: OpenAI) -> None:
    prompt = post(client, "/tokenize", {"prompt": "The sea is"})["tokens"]
    with LLM(MODEL, **OPTIONS) as llm:
        params = BeamSearchParams(beam_width=3, max_tokens=6, length_penalty=1.3)
        [found] = llm.beam_search([{"prompt_token_ids": prompt}], params)
    expected = [one.output_token_ids for one in found.sequences]
    beams: Any = {"use_beam_search": True, "length_penalty": 1.3, "return_token_ids": True}
    made = client.completions.create(
        model=MODEL, prompt=prompt, n=3, max_tokens=6, extra_body=beams
    )
    assert [choice.token_ids for choice in made.choices] == expected
    assert [choice.index for choice in made.choices] == [0, 1, 2]
    assert made.choices[0].logprobs is None and "<|" not in made.choices[0].text
    chat = ask(client, n=2, extra_body={"use_beam_search": True})
    assert len(chat.choices) == 2 and "Paris" in chat.choices[0].message.content
    for excluded in ({"stream": True}, {"stop": "x"}, {"logprobs": True}, {"presence_penalty": 1}):
        with pytest.raises(openai.BadRequestError) as caught:
            ask(client, **excluded, extra_body={"use_beam_search": True})
        assert caught.value.param == next(iter(excluded))
    with pytest.raises(openai.BadRequestError, match="use_beam_search"):
        ask(client, extra_body={"length_penalty": 2})
