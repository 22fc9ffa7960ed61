"""However a text is cut into pieces, its parts are those of the whole."""

from __future__ import annotations

import random
from typing import Any

import pytest

from quire.inputs.marked_calls import offered_functions
from quire.inputs.tool_calls import parse_tool_calls
from quire.openai_api.outputs import Answer, calls_of
from quire.openai_api.split_stream import SplitStream
from tests.inputs.made_calls import ANSWERS, TOOLS, UNNAMED

CALL = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
THOUGHT = "<|channel|>analysis<|message|> Hm, <|x|> or\n<|end|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>"
TO_F = "<|start|>assistant<|channel|>commentary to=functions.f "
TEXTS = [
    "Hello there.",
    "a < b and <too much",
    "<think>So.\n</think>\n\nYes <b>.",
    "<think>never ends",
    "  <think> x </think>" + CALL,
    CALL,
    "Let me see. " + CALL + CALL,
    CALL + " and " + CALL,
    '<tool_call>{"name": broken</tool_call> after',
    '<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>',
    '{"name": "f", "parameters": {"y": [1, 2]}}',
    '{"answer": 42}',
    '[TOOL_CALLS][{"name": "f", "arguments": {}}]',
    "[f(x=1), g()]",
    "[1, 2, 3] is a list",
    '<|python_tag|>{"name": "f", "parameters": {}}',
    THOUGHT + FINAL + "So.\n\nYes <b>.<|return|>",
    THOUGHT + " a<|channel|>analysis<|message|>more\n<|end|>" + FINAL + " So ",
    "<|channel|>analysis<|message|>never ends <|",
    FINAL + "a <|en of b",
    THOUGHT + TO_F + '<|constrain|>json<|message|>{"x": 1}<|call|>',
    TO_F + "<|message|><|call|>",
    "<|channel|>commentary<|message|>I look it up.<|end|>" + TO_F + "<|message|>{broken<|call|>",
    " to=functions.f<|channel|>commentary json<|message|>{}",
    "<|channel|>analysis to=python<|message|>1 + 1<|call|>",
    "<|chann",
    "<|channel|>final",
    "",
    "   ",
]


def pieces(text: str, rng: random.Random) -> list[str]:
    cuts = sorted(rng.choices(range(len(text) + 1), k=rng.randint(0, 8)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("tools", [True, False])
@pytest.mark.parametrize("began", [False, True])
def test_parts_of_pieces_are_parts_of_the_whole(text: str, tools: bool, began: bool) -> None:
    whole = parse_tool_calls(text, "auto" if tools else "none", began_in_prompt=began)
    calls = calls_of(whole.tool_calls)
    content = text if calls is None else whole.content
    for seed in range(30):
        rng = random.Random(seed)
        stream = SplitStream(began_reasoning=began, offered={} if tools else None)
        got: dict[str, Any] = {"content": "", "reasoning": "", "calls": ()}
        shown = [stream.feed(piece) for piece in pieces(text, rng)]
        last = Answer(0, "", finish_reason="stop", content=content)
        last = Answer(
            0,
            "",
            finish_reason="stop",
            content=content,
            reasoning=whole.reasoning,
            calls=calls or (),
        )
        for parts in (*shown, stream.end(last)):
            got["content"] += parts.content
            got["reasoning"] += parts.reasoning
            got["calls"] += parts.calls
        assert got["calls"] == (calls or ()), (text, seed)
        assert got["reasoning"].strip() == (whole.reasoning or "").strip(), (text, seed)
        assert got["content"].strip() == content.strip(), (text, seed)


@pytest.mark.parametrize("text", (ANSWERS | UNNAMED).values(), ids=ANSWERS | UNNAMED)
@pytest.mark.parametrize("before", ["", "Let me see.\n", "<think>Hm.</think>\n\nNow: "])
def test_calls_of_every_family_come_out_of_any_two_pieces(text: str, before: str) -> None:
    if before.endswith((".\n", ": ")) and text[0] not in "<[" or text.startswith("[") and before:
        before = "<think>Hm.</think>\n\n"  # these are calls where nothing else was written
    text, offered = before + text, offered_functions(TOOLS)
    whole = parse_tool_calls(text, offered=offered)
    calls = calls_of(whole.tool_calls) or ()
    last = Answer(0, "", "stop", content=whole.content, reasoning=whole.reasoning, calls=calls)
    assert len(calls) == 2
    for cut in range(len(text) + 1):
        stream = SplitStream(began_reasoning=False, offered=offered)
        shown = [stream.feed(text[:cut]), stream.feed(text[cut:]), stream.end(last)]
        assert sum((parts.calls for parts in shown), ()) == calls, cut
        assert "".join(parts.reasoning for parts in shown) == (whole.reasoning or ""), cut
        assert "".join(parts.content for parts in shown).strip() == whole.content, cut


def test_what_cannot_be_a_mark_is_shown_at_once() -> None:
    stream = SplitStream(began_reasoning=False, offered={})
    assert stream.feed("Hello <").content == "Hello "
    assert stream.feed("tool").content == ""
    assert stream.feed("s>").content == "<tools>"


def test_a_call_is_shown_when_it_closes() -> None:
    stream = SplitStream(began_reasoning=False, offered={})
    assert stream.feed(CALL[:20]).calls == ()
    [call] = stream.feed(CALL[20:]).calls
    assert call.name == "f" and call.arguments == '{"x": 1}'


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_no_more_calls_are_shown_than_may_be_made(size: int) -> None:
    text = f"{CALL}\n{CALL}"
    calls = calls_of(parse_tool_calls(text).tool_calls) or ()
    last = Answer(0, "", finish_reason="stop", content="", calls=calls)
    for at_most, expected in ((None, 2), (1, 1)):
        stream = SplitStream(began_reasoning=False, offered={}, at_most=at_most)
        shown = [stream.feed(text[i : i + size]) for i in range(0, len(text), size)]
        assert len([call for parts in shown for call in parts.calls]) == expected
        assert stream.end(last).calls == ()
