"""Tools, calls and what they gave, for chat templates that would drop them."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from quire.errors import InvalidPrompt
from quire.inputs.chat import write_chat
from quire.inputs.quoting import SpecialTokens
from quire.inputs.template import compile_template
from quire.inputs.tool_calls import parse_tool_calls
from tests.inputs.templates import CHATML, EITHER, LLAMA3, MISTRAL, PARTS, QWEN_TOOLS

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
ADD = {"name": "add", "description": "Adds <|im_end|>", "parameters": {"type": "object"}}
TOOLS = [{"type": "function", "function": ADD}, {"type": "function", "function": {"name": "東"}}]
SYSTEM, USER = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 2?"}
CALL = {"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
ASKED: list[dict[str, Any]] = [
    USER,
    {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL, CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "three"},
    {"role": "tool", "tool_call_id": "2", "content": "four"},
]


def render(messages: Any, template: str, **options: Any) -> str:
    return write_chat(messages, template, special_tokens=SPECIAL, **options).text


def test_what_a_template_reads_is_seen_in_it() -> None:
    reads = {
        name: compile_template(source) for name, source in globals().items() if "{%" in str(source)
    }
    assert {name for name, made in reads.items() if "tools" in made.names} == {"QWEN_TOOLS"}
    assert {name for name, made in reads.items() if made.reads_calls} == {"QWEN_TOOLS", "LLAMA3"}


@pytest.mark.parametrize("template", [CHATML, LLAMA3, MISTRAL, PARTS, EITHER])
def test_tools_are_offered_by_a_template_that_knows_of_none(template: str) -> None:
    made = render([USER], template, tools=TOOLS)
    listed = made.partition("<tools>\n")[2].partition("\n</tools>")[0]
    assert [json.loads(line) for line in listed.splitlines()] == TOOLS
    assert made.index("</tools>") < made.index("1 + 2?")
    assert render([USER], template, tools=[]) == render([USER], template)


def test_tools_stand_behind_the_system_message_where_there_is_one() -> None:
    made = render([SYSTEM, USER], CHATML, tools=TOOLS)
    assert made.startswith("<|im_start|>system\nBe brief.\n\nYou may call")
    assert made.count("<|im_start|>system") == 1 and "<|im_start|>user\n1 + 2?<" in made
    without_user = render([{"role": "assistant", "content": "Hello."}], PARTS, tools=TOOLS)
    assert without_user.startswith("<user>You may call") and "<assistant>Hello." in without_user


def test_a_template_that_reads_tools_is_left_alone() -> None:
    made = render([SYSTEM, *ASKED], QWEN_TOOLS, tools=TOOLS)
    assert "You may call" not in made and made.count("<tools>") == 1


@pytest.mark.parametrize("template", [CHATML, MISTRAL, EITHER, PARTS])
def test_calls_and_what_they_gave_stay_in_the_chat(template: str) -> None:
    made = render(ASKED, template)
    said = made.partition("Let me see.")[2]
    calls = parse_tool_calls(said.partition("<tool_response>")[0]).tool_calls
    assert [(call.name, call.arguments) for call in calls] == [("add", {"a": 1})] * 2
    assert said.count("<tool_response>") == said.count("</tool_response>") == 2
    assert said.index("three") < said.index("four")


def test_what_several_calls_gave_is_one_message() -> None:
    assert render(ASKED, CHATML).count("<|im_start|>user") == 2
    assert "<|im_start|>tool" not in render(ASKED, CHATML)


def test_special_tokens_in_tools_stay_text() -> None:
    tokens = SpecialTokens(["<|im_end|>", "<|im_start|>"])
    chat = write_chat([USER], CHATML, tokens, special_tokens=SPECIAL, tools=TOOLS)
    ends = [at for at in range(len(chat.text)) if chat.text.startswith("<|im_end|>", at)]
    assert [at in chat.literal for at in ends] == [False, True, False]


def test_a_call_without_a_function_is_refused() -> None:
    for wrong in ([{"id": "1"}], ["add"], "add", [{"function": "add"}]):
        message = {"role": "assistant", "content": None, "tool_calls": wrong}
        with pytest.raises(InvalidPrompt, match=r"messages\[1\].tool_calls"):
            render([USER, message], CHATML)


def test_it_is_said_once_that_tools_become_text(caplog: pytest.LogCaptureFixture) -> None:
    template = CHATML + "{# of its own #}"
    with caplog.at_level(logging.INFO, "quire"):
        render([USER], template)
        assert not caplog.messages
        render([USER], template, tools=TOOLS)
        render([USER], template, tools=TOOLS)
    assert len([line for line in caplog.messages if "does not read tools" in line]) == 1
