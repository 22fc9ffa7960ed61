"""Tool calls and reasoning: split off exactly, left alone when broken, in linear time."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from quire.errors import InvalidParams
from quire.inputs.reasoning import split_reasoning
from quire.inputs.tool_calls import ParsedAnswer, ToolCall, parse_tool_calls
from quire.params.reasoning import TAGS

ADD = ToolCall("add", {"a": 1, "b": [2, {"c": "ü"}]})
ADD_JSON = json.dumps({"name": "add", "arguments": ADD.arguments}, ensure_ascii=False)
LOOK = ToolCall("look", {})


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (f"<tool_call>\n{ADD_JSON}\n</tool_call>", "", (ADD,)),
        (f"See:\n<tool_call>{ADD_JSON}</tool_call>", "See:", (ADD,)),
        (
            f'<tool_call>{ADD_JSON}</tool_call>\n<tool_call>{{"name": "look"}}</tool_call> done',
            "done",
            (ADD, LOOK),
        ),
        (f"<tool_call>{ADD_JSON}", "", (ADD,)),
        (f"<tool_call>{ADD_JSON}<|im_end|>", "", (ADD,)),
        ('<tool_call>{"name": "look", "arguments": "{}"}</tool_call>', "", (LOOK,)),
        (f"[TOOL_CALLS][{ADD_JSON}]", "", (ADD,)),
        (f'[TOOL_CALLS] [{ADD_JSON}, {{"name": "look", "arguments": {{}}}}]</s>', "", (ADD, LOOK)),
        (f"ok [TOOL_CALLS]add[ARGS]{json.dumps(ADD.arguments)}", "ok", (ADD,)),
        (
            '[TOOL_CALLS]look{}[TOOL_CALLS]look[ARGS]{"a": 1}',
            "",
            (LOOK, ToolCall("look", {"a": 1})),
        ),
        ('<|python_tag|>{"name": "look", "parameters": {}}', "", (LOOK,)),
        ('{"name": "look", "parameters": {}}<|eom_id|>', "", (LOOK,)),
        (
            f'<|python_tag|>{ADD_JSON}; {{"type": "function", "function": {{"name": "look"}}}}',
            "",
            (ADD, LOOK),
        ),
        ("[look()]", "", (LOOK,)),
        ("[add(a=1, b=[2, {'c': \"ü\"}]), look()]<|eot_id|>", "", (ADD, LOOK)),
        ("Sure.<|python_start|>[look()]<|python_end|>", "Sure.", (LOOK,)),
        (
            r"""[send(from='a', class=1, True=False, pattern='\d+\\')]""",
            "",
            (ToolCall("send", {"from": "a", "class": 1, "True": False, "pattern": r"\d+" + "\\"}),),
        ),
        (
            r"""[x.y(s='it\'s \x41\u00e9\n', t=True, n=None, f=-1.5e3, p=(1, 2,), q={})]""",
            "",
            (
                ToolCall(
                    "x.y",
                    {"s": "it's Aé\n", "t": True, "n": None, "f": -1500.0, "p": [1, 2], "q": {}},
                ),
            ),
        ),
    ],
)
def test_calls_are_found(text: str, content: str, calls: tuple[ToolCall, ...]) -> None:
    assert parse_tool_calls(text) == ParsedAnswer(None, content, calls)
    thinking = parse_tool_calls(f"<think>\nhm\n</think>\n\n{text}")
    assert thinking == ParsedAnswer("hm", content, calls)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Just an answer.",
        "  spaces stay  ",
        "<tool_call>not json</tool_call>",
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": 5}</tool_call> text',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '{"name": "look", "parameters": {}} is what I would call',
        '{"answer": 42}',
        '{"name": "Paris"}',
        "[1, 2, 3]",
        "[f(1)]",
        "[f(x=1]",
        "[f(x=open('/etc/passwd'))]",
        "[f(x=1)] and more",
        "[f(x=__import__)]",
        "[f(x=" + "[" * 5000 + "]" * 5000 + ")]",
        "[f(x=" + "1" * 100_000 + ")]",
        "[TOOL_CALLS]nothing here",
        "[TOOL_CALLS][1, 2]",
        "[TOOL_CALLS]two words{}",
        "<|python_tag|>print(1)",
        "<tool_call>" + "[" * 100_000,
        '<tool_call>{"name": "f", "arguments": {"x": ' + "9" * 50_000 + "}}</tool_call>",
    ],
)
def test_what_is_no_call_stays_as_it_is(text: str) -> None:
    assert parse_tool_calls(text) == ParsedAnswer(None, text)


def test_a_broken_call_beside_a_good_one_stays_in_the_text() -> None:
    text = f"a<tool_call>oops</tool_call>b<tool_call>{ADD_JSON}</tool_call>c"
    assert parse_tool_calls(text) == ParsedAnswer(None, "a<tool_call>oops</tool_call>bc", (ADD,))


THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
CHANNELS = {
    f"{THOUGHT}<|channel|>final<|message|>So.<|return|>": ParsedAnswer("Hm.", "So."),
    "<|channel|>final<|message|>So.": ParsedAnswer(None, "So."),
    "<|channel|>analysis<|message|>cut o": ParsedAnswer("cut o", ""),
    f"{THOUGHT}<|channel|>commentary to=functions.add <|constrain|>json<|message|>"
    '{"a": 1}<|call|>': ParsedAnswer("Hm.", "", (ToolCall("add", {"a": 1}),)),
    ' to=functions.add<|channel|>commentary json<|message|>{"a": 1}': ParsedAnswer(
        None, "", (ToolCall("add", {"a": 1}),)
    ),
    f"{THOUGHT}<|channel|>analysis to=python<|message|>1 + 1<|call|>": ParsedAnswer(
        "Hm.\n1 + 1", ""
    ),
    "<|channel|>commentary<|message|>I add.<|end|><|start|>assistant<|channel|>commentary "
    "to=functions.add<|message|>{oops<|call|>": ParsedAnswer(None, "I add.\n{oops"),
    "<|channel|>commentary to=functions.now<|message|><|call|>": ParsedAnswer(
        None, "", (ToolCall("now", {}),)
    ),
    "It wrote <|channel|>final<|message|>x": ParsedAnswer(
        None, "It wrote <|channel|>final<|message|>x"
    ),
}


@pytest.mark.parametrize("text", CHANNELS)
def test_channels_say_what_messages_are_for(text: str) -> None:
    assert parse_tool_calls(text) == CHANNELS[text]
    assert parse_tool_calls(text, "channels", tag="<|channel|>") == CHANNELS[text]
    assert parse_tool_calls(text, tag="<think>") == ParsedAnswer(None, text)
    assert parse_tool_calls(text, "none").tool_calls == ()


def test_a_format_can_be_named() -> None:
    text = f"<tool_call>{ADD_JSON}</tool_call>"
    assert parse_tool_calls(text, "hermes").tool_calls == (ADD,)
    for other in ("none", "mistral", "pythonic"):
        assert parse_tool_calls(text, other) == ParsedAnswer(None, text)
    with pytest.raises(InvalidParams, match="one of auto, none, channels, cohere, deepseek"):
        parse_tool_calls(text, "hermez")


@pytest.mark.parametrize(("opening", "closing"), TAGS)
def test_reasoning_is_split_off(opening: str, closing: str) -> None:
    assert split_reasoning(f"{opening}\nwhy\n{closing}\n\nso") == ("why", "so")
    assert split_reasoning(f"\n{opening}why") == ("why", "")
    assert split_reasoning(f"why{closing}so") == ("why", "so")
    assert split_reasoning(f"{opening}{closing}so") == ("", "so")
    assert split_reasoning(f"no, {opening}x{closing} y") == (None, f"no, {opening}x{closing} y")


def test_an_answer_without_reasoning_is_left_alone() -> None:
    assert split_reasoning(" so\n") == (None, " so\n")
    assert split_reasoning("cut off", began_in_prompt=True) == ("cut off", "")
    assert parse_tool_calls("a</think>b", began_in_prompt=True) == ParsedAnswer("a", "b")


HOSTILE: dict[str, Any] = {
    "open tags": lambda n: "<tool_call>" * (n // 11),
    "channels": lambda n: "<|channel|>" * (n // 11),
    "messages": lambda n: "<|channel|>analysis<|message|>" * (n // 30),
    "headers": lambda n: "<|channel|>analysis<|message|>a<|end|>" + "to=x<|" * (n // 6),
    "open objects": lambda n: '<tool_call>{"name":' * (n // 19),
    "open strings": lambda n: '<tool_call>{"name":"' * (n // 20),
    "close tags": lambda n: "</tool_call>" * (n // 12) + "<tool_call>",
    "brackets": lambda n: "<tool_call>" + "[" * n,
    "spaces": lambda n: "<tool_call>" + " " * n + "</tool_call>",
    "lines": lambda n: "\n" * n + "[f(x=1)]",
    "marks": lambda n: "[TOOL_CALLS]" * (n // 12),
    "mark and list": lambda n: "[TOOL_CALLS][{" * (n // 14),
    "mark and name": lambda n: "[TOOL_CALLS]f" + "x" * n + "{",
    "semicolons": lambda n: '<|python_tag|>{"name": "f"}' + ';{"name": "f"}' * (n // 14),
    "spaced semicolons": lambda n: '{"name": "f"}' + ' ;  {"name": "f"}' * (n // 17),
    "long string": lambda n: "[f(x='" + "\\" * n,
    "escapes": lambda n: "[f(x='" + "\\n" * (n // 2) + "')]",
    "digits": lambda n: "[f(x=" + "7" * n + ")]",
    "json digits": lambda n: '<tool_call>{"name": "f", "arguments": ' + "7" * n,
    "many calls": lambda n: "[" + "f(x=1)," * (n // 7) + "f()]",
    "think": lambda n: "<think>" * (n // 7),
    "think ends": lambda n: "x</think" * (n // 8),
    "text in text": lambda n: '<tool_call>{"name":"f","arguments":"' + '{\\"a\\":' * (n // 7),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_eight_times_the_text_takes_about_eight_times_as_long(name: str) -> None:
    def seconds(size: int) -> float:
        text = HOSTILE[name](size)
        best = 1e9
        for _ in range(3):
            started = time.thread_time()
            parse_tool_calls(text)
            best = min(best, time.thread_time() - started)
        return best

    small, large = seconds(40_000), seconds(320_000)
    # What is quadratic takes 64 times as long; below a few milliseconds the clock says nothing.
    assert large < 0.02 or large < 24 * small
