"""The table of fields: no field is left out in silence, and forced calls follow their schemas."""

from __future__ import annotations

from typing import Any

import pytest

from quire.anthropic_api.messages import read_message
from quire.openai_api.asks import read_body
from quire.openai_api.errors import ApiError
from quire.openai_api.fields import (
    CHAT,
    CLASSIFY,
    COMPLETIONS,
    EMBEDDINGS,
    MESSAGES,
    POOLING,
    POOLING_PATHS,
    RERANKS,
    RESPONSES,
    SCORE,
    TABLE,
)
from quire.openai_api.pooling import read_pooling_body
from quire.openai_api.responses import read_response
from quire.sampling_params import SamplingParams

BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "x"}]},
    COMPLETIONS: {"prompt": "x"},
    RESPONSES: {"input": "x"},
    MESSAGES: {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5},
    EMBEDDINGS: {"input": "x"},
    CLASSIFY: {"input": "x"},
    POOLING: {"input": "x"},
    SCORE: {"text_1": "x", "text_2": "y"},
    **dict.fromkeys(RERANKS, {"query": "x", "documents": ["y"]}),
}
VALUES: dict[str, Any] = {
    "text": "x",
    "true or false": True,
    "a whole number": 2,
    "a number": 0.5,
    "a list": [],
    "an object": {},
    "text or a list": "x",
    "text or an object": "x",
    "true, false or a whole number": 1,
    "anything": {"type": "string"},
}


def read(endpoint: str, body: dict[str, Any]) -> Any:
    if endpoint == RESPONSES:
        return read_response(body, None)
    if endpoint == MESSAGES:
        return read_message(body, None), body
    if endpoint in POOLING_PATHS:
        return read_pooling_body(endpoint, body, None, ()), body
    return read_body(endpoint, body), body


@pytest.mark.parametrize("endpoint", list(TABLE))
def test_every_field_does_what_the_table_says(endpoint: str) -> None:
    for field in TABLE[endpoint].values():
        body = {**BODIES[endpoint], field.name: VALUES[field.value]}
        if field.kind == "refused":
            with pytest.raises(ApiError) as caught:
                read(endpoint, body)
            assert (caught.value.code, caught.value.param) == ("not_supported", field.name)
        wrong: Any = 5 if field.value in ("text", "true or false", "a list", "an object") else ()
        if field.kind == "moot":  # whatever it holds
            for odd in (body, {**body, field.name: wrong}):
                assert read(endpoint, odd)[0] == read(endpoint, BODIES[endpoint])[0]
        elif field.kind != "refused" and field.value != "anything":
            with pytest.raises(ApiError) as caught:
                read(endpoint, {**BODIES[endpoint], field.name: wrong})
            assert caught.value.status == 400 and caught.value.param == field.name


@pytest.mark.parametrize("endpoint", list(TABLE))
def test_unknown_fields_name_the_nearest(endpoint: str) -> None:
    with pytest.raises(ApiError, match="priority") as caught:
        read(endpoint, {**BODIES[endpoint], "prioritty": 1})
    assert caught.value.code == "unknown_parameter"


def test_a_field_of_another_endpoint_is_said_to_be_so() -> None:
    with pytest.raises(ApiError, match="belongs to /v1/completions"):
        read_body(CHAT, {**BODIES[CHAT], "echo": True})


@pytest.mark.parametrize(
    ("name", "hint"),
    [("enable_thinking", "chat_template_kwargs"), ("num_predict", "max_tokens"), ("options", "go")],
)
def test_names_of_other_servers_say_where_they_go(name: str, hint: str) -> None:
    with pytest.raises(ApiError, match=f"no field '{name}'; .*{hint}"):
        read_body(CHAT, {**BODIES[CHAT], name: {}})


def tool(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def test_definitions_of_several_tools_do_not_meet() -> None:
    first = {"$ref": "#/$defs/A", "$defs": {"A": {"type": "string"}}}
    second = {"$ref": "#/$defs/A", "$defs": {"A": {"type": "integer"}}}
    body = {**BODIES[CHAT], "tools": [tool("f", first), tool("g", second)]}
    asked = read_body(CHAT, {**body, "tool_choice": "required"})
    schema: Any = asked.rows[0]["params"]["structured_outputs"]["json"]
    for kind, expected in zip(schema["items"]["anyOf"], ("string", "integer"), strict=True):
        name = kind["properties"]["arguments"]["$ref"].removeprefix("#/$defs/")
        assert schema["$defs"][name] == {"type": expected}
    assert "$defs" in first, "what the caller sent stays as it was"


@pytest.mark.parametrize(
    "more",
    [
        {"tool_choice": "required"},
        {"tools": [tool("f", {})], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        {"tools": [tool("f", {})], "tool_choice": "sometimes"},
        {"tools": [tool("f", {})], "tool_choice": "required", "guided_regex": "a"},
        {"tools": [{"type": "custom"}]},
        {"top_logprobs": 3},
        {"logprobs": True, "top_logprobs": 21},
        {"stream_options": {"include_usage": True}},
        {"stream": True, "stream_options": {"x": True}},
        {"messages": []},
        {"response_format": {"type": "xml"}},
    ],
)
def test_what_cannot_be_meant_is_400(more: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as caught:
        read_body(CHAT, {**BODIES[CHAT], **more})
    assert caught.value.status == 400 and caught.value.param


def test_allowed_tools_are_those_that_are_offered() -> None:
    tools = [tool("f", {}), tool("g", {})]
    named = {"tools": [{"type": "function", "function": {"name": "g"}}], "mode": "auto"}
    choice = {"type": "allowed_tools", "allowed_tools": named}
    asked = read_body(CHAT, {**BODIES[CHAT], "tools": tools, "tool_choice": choice})
    assert [each["function"]["name"] for each in asked.tools.offered] == ["g"]


def test_a_top_p_of_zero_leaves_the_likeliest_token() -> None:
    [row] = read_body(CHAT, {**BODIES[CHAT], "top_p": 0}).rows
    assert 0 < SamplingParams(top_p=row["params"]["top_p"]).top_p < 1e-6
    [row] = read_body(CHAT, {**BODIES[CHAT], "top_p": -1}).rows
    assert row["params"]["top_p"] == -1, "refused by the engine"


def test_a_developer_is_the_system() -> None:
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    [row] = read_body(CHAT, {"messages": messages}).rows
    assert [message["role"] for message in row["messages"]] == ["system", "user"]
    assert messages[0]["role"] == "developer", "what the caller sent stays as it was"


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}, {"json": {}}),
        ({"type": "json_object", "schema": {}}, {"json_object": True}),
        ({"type": "json_object", "schema": {"type": "array"}}, {"json": {"type": "array"}}),
    ],
)
def test_an_empty_schema_says_nothing(form: dict[str, Any], wanted: dict[str, Any]) -> None:
    [row] = read_body(CHAT, {**BODIES[CHAT], "response_format": form}).rows
    assert row["params"]["structured_outputs"] == wanted


@pytest.mark.parametrize(("size", "mode"), [(64, None), (65, "tokens")])
def test_long_lists_of_choices_are_drawn_token_by_token(size: int, mode: str | None) -> None:
    for field, choices in [("guided_choice", ["x" * 64] * size), ("structured_outputs", None)]:
        given = choices or {"choice": ["x" * 64] * size}
        [row] = read_body(CHAT, {**BODIES[CHAT], field: given}).rows
        assert row["params"]["structured_outputs"].get("choice_mode") == mode


def test_long_lists_of_choices_are_not_judged_whole_on_demand() -> None:
    wanted = {"choice": ["x" * 64] * 65, "choice_mode": "whole"}
    with pytest.raises(ApiError, match="judged whole up to 4,096 characters; leave choice_mode"):
        read_body(CHAT, {**BODIES[CHAT], "structured_outputs": wanted})


@pytest.mark.parametrize("fields", [{"n": 3, "best_of": 3}, {"n": 3, "best_of": 1}, {"best_of": 1}])
def test_as_many_written_as_answered_is_what_happens_anyway(fields: dict[str, int]) -> None:
    asked = read_body(COMPLETIONS, BODIES[COMPLETIONS] | fields)
    (row,) = asked.rows
    assert asked.n == row["params"].get("n", 1) == fields.get("n", 1)
    assert "best_of" not in row["params"]


@pytest.mark.parametrize("fields", [{"n": 2, "best_of": 3}, {"best_of": 2}, {"best_of": 0}])
def test_more_written_than_answered_is_refused(fields: dict[str, int]) -> None:
    with pytest.raises(ApiError, match=r"best_of is n .*keep the likeliest") as refused:
        read_body(COMPLETIONS, BODIES[COMPLETIONS] | fields)
    assert refused.value.param == "best_of"
