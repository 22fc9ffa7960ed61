"""Tool calls of each family of models: names, and arguments of the types their tools ask for."""

from __future__ import annotations

import time
from typing import Any

import pytest

from quire.inputs.marked_calls import FORMATS, offered_functions
from quire.inputs.tool_calls import ParsedAnswer, parse_tool_calls
from quire.options.parsers import tool_call_parser
from quire.outputs import ToolCall
from tests.inputs.made_calls import ANSWERS, LOOK, NOW, TOOLS, UNNAMED

OFFERED = offered_functions(TOOLS)
ALL = ANSWERS | UNNAMED


@pytest.mark.parametrize("name", ALL)
def test_calls_are_recognised_by_their_marks(name: str) -> None:
    read = parse_tool_calls(ALL[name], offered=OFFERED)
    assert read == ParsedAnswer(None, "", (LOOK, NOW))
    thinking = parse_tool_calls(f"<think>\nhm\n</think>\n\n{ALL[name]}", offered=OFFERED)
    assert thinking == ParsedAnswer("hm", "", (LOOK, NOW))


@pytest.mark.parametrize("name", ANSWERS)
def test_the_parsers_of_scripts_have_their_formats(name: str) -> None:
    named = tool_call_parser("tool_call_parser", name)
    assert parse_tool_calls(ANSWERS[name], named, offered=OFFERED).tool_calls == (LOOK, NOW)


WITHIN = [name for name in ALL if name not in ("phi4_mini_json", "xlam", "pythonic")]


@pytest.mark.parametrize("name", WITHIN)
def test_what_stands_before_the_calls_is_the_answer(name: str) -> None:
    read = parse_tool_calls(f"Let me see [1].\n{ALL[name]}", offered=OFFERED)
    assert read == ParsedAnswer(None, "Let me see [1].", (LOOK, NOW))


def test_values_without_quotes_are_what_their_parameters_say() -> None:
    def read(raw: str, offered: Any = OFFERED) -> Any:
        text = f"<tool_call><function=look><parameter={raw}</parameter></function></tool_call>"
        [call] = parse_tool_calls(text, offered=offered).tool_calls
        return next(iter(call.arguments.values()))

    assert read("zip>5") == "5" and read("zip>null") == "null" and read("zip>[1]") == "[1]"
    assert read("note>5") == "5" and read("note>null") is None and read("note>None") is None
    assert read("unit>5") == "5" and read("days>5") == 5 and read("days>soon") == "soon"
    assert read("tags>\n[1,\n2]\n") == [1, 2] and read("zip>\n a\n\nb \n") == " a\n\nb "
    assert read('days>"5"') == '"5"'  # quotes of its own are part of it
    for unknown in (None, {}, offered_functions([{"function": {"name": "look"}}])):
        assert read("zip>5", unknown) == 5 and read("zip>a b", unknown) == "a b"


@pytest.mark.parametrize(
    "tools",
    [
        [5, None, {}, {"function": 5}, {"function": {"name": None, "parameters": []}}],
        [{"name": "f", "parameters": {"properties": []}}],
        [{"name": "f", "parameters": {"properties": {"x": 5, "y": {"type": 5, "anyOf": "no"}}}}],
    ],
)
def test_schemas_that_are_none_say_nothing(tools: list[Any]) -> None:
    offered = offered_functions(tools)
    assert offered is not None and not any(offered.values())


@pytest.mark.parametrize("closed", [True, False])
def test_a_call_without_arguments_is_one_of_what_was_offered(closed: bool) -> None:
    end = "</tool_call>" * closed
    assert parse_tool_calls(f"<tool_call>now{end}", offered=OFFERED).tool_calls == (NOW,)
    for text in (f"<tool_call>later{end}", f"<tool_call>now or later{end}"):
        assert parse_tool_calls(text, offered=OFFERED) == ParsedAnswer(None, text)


def test_calls_that_were_not_closed_end_where_the_next_one_opens() -> None:
    text = '<tool_call>{"name": "now"}<tool_call>\n{"name": "now", "arguments": {"x": 1}}'
    assert parse_tool_calls(text).tool_calls == (NOW, ToolCall("now", {"x": 1}))


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call><function=>x</function></tool_call>",
        "<tool_call><function=f",
        "<tool_call><function=f><parameter=x</parameter></function></tool_call>",
        "<tool_call>f<arg_key>x<arg_value>1</arg_value></tool_call>",
        "<minimax:tool_call>no</minimax:tool_call>",
        "<minimax:tool_call><invoke>no</invoke></minimax:tool_call>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "<｜tool▁calls▁begin｜>",
        "<|tool_calls_section_begin|><|tool_call_begin|>f:0<|tool_call_argument_begin|>{oops",
        "<|tool_call|>[1]",
        "<tool_calls>[]</tool_calls>",
        '<tool_calls>[{"name": "f"}, 5]</tool_calls>',
        "<function_calls>\nimport os\n</function_calls>",
        "functools[1]",
        "functools are fine",
        '[{"name": "Paris"}]',
        '[{"name": "f", "arguments": {}}] is what I would call',
    ],
)
def test_what_is_no_call_stays_as_it_is(text: str) -> None:
    assert parse_tool_calls(text, offered=OFFERED) == ParsedAnswer(None, text)


MARKS = [each for some in FORMATS.values() for each in some]
PARTS = ["<function=", "<parameter=", "<arg_key>", '<invoke name="f">', '<parameter name="x">']
PARTS += ["<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<|tool_call_begin|>", "{", "[{", "f(x="]


@pytest.mark.parametrize("part", ["", *PARTS])
def test_eight_times_the_text_takes_about_eight_times_as_long(part: str) -> None:
    def seconds(size: int) -> float:
        took = 0.0
        for each in MARKS:
            for unit in (each.opening + part, part, each.opening + part + each.closing):
                text = each.opening + unit * (size // (len(unit) or 1))
                started = time.thread_time()
                parse_tool_calls(text)
                took += time.thread_time() - started
        return took

    def grows_with_the_text() -> bool:
        small, large = seconds(5_000), seconds(40_000)
        return large < 0.1 or large < 24 * small  # what is quadratic takes 64 times as long

    # Once in a while other programs on the machine make a text take twice its time.
    assert any(grows_with_the_text() for _ in range(4))
