"""The chunks of a stream, whatever comes from the engine and in which order."""

from __future__ import annotations

from typing import Any

import pytest

from quire.openai_api.asks import read_body
from quire.openai_api.chunks import Stream
from quire.openai_api.fields import CHAT, COMPLETIONS
from quire.openai_api.outputs import Answer, Output

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = '[{"name": "f", "arguments": {}}]'
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "x"}]},
    COMPLETIONS: {"prompt": "x"},
}


@pytest.mark.parametrize(
    ("path", "more", "text"),
    [
        (COMPLETIONS, {}, "yes"),
        (CHAT, {}, "yes"),
        (CHAT, {"tools": [TOOL], "tool_choice": "required"}, CALL),
    ],
)
def test_an_answer_that_ended_before_the_others_is_shown_once(
    path: str, more: dict[str, Any], text: str
) -> None:
    """The last output of a row holds all of its answers, those of before without new text."""
    asked = read_body(path, {**BODIES[path], **more, "n": 2, "stream": True})
    stream = Stream(asked, id="x", created=0, model="m")
    outputs = [
        Output((Answer(0, text, (1,), "stop"),), finished=False),
        Output((Answer(0, "", (), "stop"), Answer(1, text, (1,), "stop")), finished=True),
    ]
    choices = [chunk["choices"][0] for output in outputs for chunk in stream.feed(0, output)]
    for index in range(2):
        own = [choice for choice in choices if choice["index"] == index]
        ends = [choice["finish_reason"] for choice in own if choice["finish_reason"]]
        assert len(ends) == 1 and own[-1]["finish_reason"]
        calls = [call for c in own for call in c.get("delta", {}).get("tool_calls", ())]
        assert len(calls) == (1 if more else 0)
