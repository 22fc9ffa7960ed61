"""Responses: scores where they are asked for, whole and streamed; names of calls; broken items."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from quire.openai_api.bodies import call_id
from quire.openai_api.errors import ApiError
from quire.openai_api.outputs import Answer, Output, TokenScore
from quire.openai_api.response_stream import ResponseStream
from quire.openai_api.responses import About, read_response, response_object
from quire.server.label_scores import read_label_scores

SCORES = tuple(TokenScore(i, text, -0.5, ((i, text, -0.5),)) for i, text in enumerate("ab"))


def asked(**more: Any) -> tuple[Any, About]:
    read, given = read_response({"input": "x", **more}, None)
    return read, About("1", 0, "fake", given)


def test_scores_may_be_included_by_name() -> None:
    read, _ = asked(include=["message.output_text.logprobs", "reasoning.encrypted_content"])
    assert read.logprobs and read.rows[0]["params"]["logprobs"] == 0
    assert not asked(include=["reasoning.encrypted_content"])[0].logprobs


def shown(item: dict[str, Any]) -> list[str]:
    return [one["token"] for one in item["content"][0]["logprobs"]]


def test_scores_are_shown_where_they_were_asked_for() -> None:
    read, about = asked(top_logprobs=1)
    answer = Answer(0, "ab", finish_reason="stop", logprobs=SCORES)
    [item] = response_object(read, Output((answer,), True), about)["output"]
    assert shown(item) == ["a", "b"]
    read, about = asked(top_logprobs=1, stream=True)
    stream = ResponseStream(read, about)
    first = Answer(0, "a", logprobs=SCORES[:1])
    last = Answer(0, "b", finish_reason="stop", logprobs=SCORES[1:])
    events = [*stream.feed(0, Output((first,), False))]
    events += stream.feed(0, Output((last,), True))
    deltas = [e for e in events if e["type"] == "response.output_text.delta"]
    assert [[s["token"] for s in e["logprobs"]] for e in deltas] == [["a"], ["b"]]
    assert shown(events[-1]["response"]["output"][0]) == ["a", "b"]


@pytest.mark.parametrize(("ended", "status"), [("stop", "completed"), ("length", "incomplete")])
def test_an_answer_that_was_cut_says_so_in_its_item(ended: str, status: str) -> None:
    read, about = asked(stream=True)
    last = Output((Answer(0, "ab", finish_reason=ended),), True)
    events = list(ResponseStream(read, about).feed(0, last))
    done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    for item in (*done, *events[-1]["response"]["output"]):
        assert item["status"] == status
    whole = response_object(read, last, about)
    assert whole == events[-1]["response"] and events[-1]["type"] == f"response.{status}"


@pytest.mark.parametrize("content", ["text", [5], [{"text": 5}], {"text": "x"}])
def test_reasoning_without_parts_is_refused(content: Any) -> None:
    with pytest.raises(ApiError, match=r"input\[0\].content") as caught:
        asked(input=[{"type": "reasoning", "content": content}])
    assert caught.value.status == 400


def test_thoughts_a_text_and_calls_are_one_turn() -> None:
    def call(n: int) -> dict[str, Any]:
        return {"type": "function_call", "call_id": f"c{n}", "name": "f", "arguments": "{}"}

    def result(n: int) -> dict[str, Any]:
        return {"type": "function_call_output", "call_id": f"c{n}", "output": "1"}

    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]}
    said = {"role": "assistant", "content": "Let me see."}
    asks = {"role": "user", "content": "x"}
    items = [asks, thought, said, call(1), call(2), result(1), result(2), thought, said, said]
    before = copy.deepcopy(items)
    messages = asked(input=items)[0].rows[0]["messages"]
    assert items == before
    turn = messages[1]
    assert (turn["content"], turn["reasoning_content"]) == ("Let me see.", "hm")
    assert [one["id"] for one in turn["tool_calls"]] == ["c1", "c2"]
    roles = [message["role"] for message in messages]
    assert roles == ["user", "assistant", "tool", "tool", "assistant", "assistant"]


def test_calls_have_names_of_nine_letters_and_digits() -> None:
    names = [call_id(f"chatcmpl-{i}", 0, j) for i in range(200) for j in range(5)]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch("[a-zA-Z0-9]{9}", name) for name in names)
    assert call_id("x", 1, 2) == call_id("x", 1, 2)


def test_scores_of_labels_heed_the_lane_and_the_salt() -> None:
    given = {"query": "q", "items": ["a"], "label_token_ids": [1]}
    read = read_label_scores({**given, "priority": 1, "cache_salt": "s"})
    assert read.is_batch and read.rows[0]["salt"] == "s" and read.rows[0]["priority"] == 1
    with pytest.raises(ApiError, match="pooling"):
        read_label_scores({**given, "truncate_prompt_tokens": 5})


def test_errors_name_messages_where_the_body_has_them() -> None:
    said = {"role": "assistant", "content": "b"}
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    items = [{"role": "user", "content": "a"}, said, call, {"role": "user", "content": "c"}]
    read, _ = read_response({"input": items, "instructions": "Be brief."}, None)
    assert len(read.rows[0]["messages"]) == 4  # the call is part of what was said before it
    why = "; ".join(f"messages[{i}].content[0]" for i in range(5))
    named = ApiError(400, why, param="messages").named(read.fields)
    assert named.message == "; ".join(
        f"{place}.content[0]"
        for place in ("instructions", "input[0]", "input[1]", "input[3]", "messages[4]")
    )
    assert named.param == "input"
    read, _ = read_response({"input": "a"}, None)
    assert ApiError(400, "messages[0] is odd").named(read.fields).message == "input is odd"


def test_refusals_call_fields_as_the_body_does() -> None:
    fields = asked()[0].fields
    for words, own in (
        ("max_tokens is at least 1", "max_output_tokens is at least 1"),
        ("at least 1 is right", "at least 1 is right"),
        ("max_tokens_seen", "max_tokens_seen"),
    ):
        error = ApiError(400, words, param="max_tokens").named(fields)
        assert (error.message, str(error), error.param) == (own, own, "max_output_tokens")
