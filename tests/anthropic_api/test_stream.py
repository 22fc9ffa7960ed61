"""Messages as they are written: events in their order, that come to what the whole answer is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quire.anthropic_api.answers import message_body
from quire.anthropic_api.messages import read_message
from quire.anthropic_api.stream import MessageStream
from quire.openai_api.outputs import Answer, Call, Output

TOOL = {"name": "go", "input_schema": {"type": "object", "properties": {"to": {"type": "string"}}}}
CALLS = '<tool_call>\n{"name": "go", "arguments": {"to": "Rome"}}\n</tool_call>'
ROME = (Call("go", '{"to": "Rome"}'),)


def asked(**more: Any) -> Any:
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9, **more}
    return read_message(body, None)


def outputs(answer: Answer, *, size: int) -> list[Output]:
    """An answer as it comes, some characters at a time."""
    pieces = [answer.text[i : i + size] for i in range(0, len(answer.text), size)]
    counts = {"prompt_tokens": 12, "cached_tokens": 4}
    some = [
        Output((Answer(0, piece),), False, output_tokens=i + 1, **counts)
        for i, piece in enumerate(pieces)
    ]
    last = Answer(
        *(0, "", (), answer.finish_reason, answer.stop_reason),
        content=answer.content,
        reasoning=answer.reasoning,
        calls=answer.calls,
    )
    return [*some, Output((last,), True, output_tokens=40, reasoning_tokens=3, **counts)]


def put_together(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client makes of events, which it reads strictly."""
    kinds = [event["type"] for event in events]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    message: dict[str, Any] = json.loads(json.dumps(events[0]["message"]))
    assert message["stop_reason"] is None and not message["content"]
    is_open, inputs = False, ""
    for event in events[1:-2]:
        at = event["index"]
        if event["type"] == "content_block_start":
            assert not is_open and at == len(message["content"])
            message["content"].append(dict(event["content_block"]))
            is_open, inputs = True, ""
            continue
        assert is_open and at == len(message["content"]) - 1
        block = message["content"][at]
        if event["type"] == "content_block_stop":
            is_open = False
            if block["type"] == "tool_use":
                block["input"] = json.loads(inputs)
            continue
        delta = event["delta"]
        if delta["type"] == "input_json_delta":
            inputs += delta["partial_json"]
        else:
            name = delta["type"].removesuffix("_delta")
            block[name] += delta[name]
    assert not is_open
    return {**message, **events[-2]["delta"], "usage": events[-2]["usage"]}


PLAIN = Answer(0, "Hello there", finish_reason="stop")
ANSWERS = {
    "text": (PLAIN, {}, ["text"], "end_turn"),
    "cut": (Answer(0, "Hello", finish_reason="length"), {}, ["text"], "max_tokens"),
    "stopped": (
        Answer(0, "Hello", finish_reason="stop", stop_reason="END"),
        {"stop_sequences": ["END"]},
        ["text"],
        "stop_sequence",
    ),
    "of another end": (
        Answer(0, "Hello", finish_reason="stop", stop_reason=7),
        {},
        ["text"],
        "end_turn",
    ),
    "empty": (Answer(0, "", finish_reason="stop"), {}, [], "end_turn"),
    "thoughts": (
        Answer(
            *(0, "<think>hm, so</think>\n\nRome", (), "stop"), content="Rome", reasoning="hm, so"
        ),
        {},
        ["thinking", "text"],
        "end_turn",
    ),
    "thoughts left out": (
        Answer(0, "<think>hm</think>Rome", (), "stop", content="Rome", reasoning="hm"),
        {"thinking": {"type": "disabled"}},
        ["text"],
        "end_turn",
    ),
    "calls": (
        Answer(0, f"I go.\n{CALLS}\n{CALLS}", (), "stop", content="I go.", calls=ROME * 2),
        {"tools": [TOOL]},
        ["text", "tool_use", "tool_use"],
        "tool_use",
    ),
    "one call": (
        Answer(0, f"{CALLS}\n{CALLS}", (), "stop", content="", calls=ROME * 2),
        {"tools": [TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        ["tool_use"],
        "tool_use",
    ),
    "forced": (
        Answer(0, '{"to": "Rome"}', finish_reason="stop"),
        {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "go"}},
        ["tool_use"],
        "tool_use",
    ),
    "forced and cut": (
        Answer(0, '{"to": "Ro', finish_reason="length"),
        {"tools": [TOOL], "tool_choice": {"type": "any"}},
        ["text"],
        "max_tokens",
    ),
}


@pytest.mark.parametrize("size", [1, 5, 400])
@pytest.mark.parametrize("name", ANSWERS)
def test_a_stream_comes_to_the_whole(name: str, size: int) -> None:
    answer, more, kinds, reason = ANSWERS[name]
    read = asked(**more)
    about: Any = {"id": "msg_1", "model": "m"}
    came = outputs(answer, size=size)
    last = Output((answer,), True, 12, 40, 4, 3)
    whole = message_body(read, last, **about)
    stream = MessageStream(read, **about)
    made = put_together([event for one in came for event in stream.feed(0, one)])
    if name == "calls":  # what stands between a text and a call is told before the call is known
        made["content"][0]["text"] = made["content"][0]["text"].strip()
    assert made == whole
    assert [block["type"] for block in whole["content"]] == kinds
    assert whole["stop_reason"] == reason
    assert (whole["stop_sequence"] == "END") == (reason == "stop_sequence")
    assert whole["usage"] == {
        "input_tokens": 8,
        "cache_read_input_tokens": 4,
        "cache_creation_input_tokens": 0,
        "output_tokens": 40,
        "output_tokens_details": {"thinking_tokens": 3},
        "service_tier": "standard",
    }


def test_calls_have_names_of_their_own_and_their_arguments_read() -> None:
    answer, more, *_ = ANSWERS["calls"]
    last = Output((answer,), True)
    first, second = message_body(asked(**more), last, id="msg_1", model="m")["content"][1:]
    assert first["id"] != second["id"] and first["input"] == {"to": "Rome"}
    other = message_body(asked(**more), last, id="msg_2", model="m")["content"][1]
    assert other["id"] != first["id"]


def test_thoughts_have_a_signature_that_is_theirs() -> None:
    answer, *_ = ANSWERS["thoughts"]
    block = message_body(asked(), Output((answer,), True), id="m", model="m")["content"][0]
    assert block["thinking"] == "hm, so" and len(block["signature"]) == 44
