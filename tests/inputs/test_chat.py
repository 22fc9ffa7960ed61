from __future__ import annotations

import copy
import time
from pathlib import Path
from typing import Any, cast

import pytest

from quire.errors import InvalidOption, InvalidPrompt, NotSupported
from quire.inputs.chat import (
    choose_template,
    is_conversation,
    read_template,
    render_conversation,
    render_conversations,
    write_chat,
)
from quire.inputs.template import compile_template
from quire.inputs.tokenizer import Tokenizer
from tests.inputs.templates import CHATML, EITHER, LLAMA3, MISTRAL, PARTS, QWEN_TOOLS

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
USER = {"role": "user", "content": "What is 2 + 2? ünïcode 🚀 <b>&</b>"}
CHAT = [
    {"role": "system", "content": "  Be brief.  "},
    USER,
    {"role": "assistant", "content": "It is 4.\n"},
    {"role": "user", "content": "Sure?"},
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather in 東京 or <elsewhere>",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
TOOL_CHAT = [
    USER,
    {
        "role": "assistant",
        "tool_calls": [
            {"type": "function", "function": {"name": "weather", "arguments": {"city": "東京"}}}
        ],
    },
    {"role": "tool", "content": '{"temp": 20}'},
    {"role": "assistant", "content": "20 degrees", "reasoning": "the tool says so"},
    {"role": "user", "content": "Thanks"},
]
TEMPLATES = {
    "chatml": CHATML,
    "llama3": LLAMA3,
    "mistral": MISTRAL,
    "qwen_tools": QWEN_TOOLS,
    "either": EITHER,
}


@pytest.fixture(scope="module")
def oracle(tokenizers_by_kind: dict[str, Tokenizer]) -> Any:
    return tokenizers_by_kind["byte_bpe"].hf_tokenizer()


def render(messages: Any, template: str, **options: Any) -> str:
    return write_chat(messages, template, special_tokens=SPECIAL, **options).text


def user(content: Any) -> list[Any]:
    return [{"role": "user", "content": content}]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("chat", [[USER], CHAT[1:], CHAT])
def test_rendering_equals_transformers(name: str, prompt: bool, chat: Any, oracle: Any) -> None:
    if name == "mistral" and chat[0]["role"] == "system":
        pytest.skip("this template refuses a system message")
    options = {"add_generation_prompt": prompt}
    expected = oracle.apply_chat_template(
        chat, chat_template=TEMPLATES[name], tokenize=False, **options
    )
    assert render(chat, TEMPLATES[name], **options) == expected


@pytest.mark.parametrize("name", ["llama3", "qwen_tools"])
@pytest.mark.parametrize("extra", [{}, {"enable_thinking": False, "date_string": "26 Jul 2024"}])
def test_tools_and_variables_equal_transformers(name: str, extra: Any, oracle: Any) -> None:
    chat, tools = (TOOL_CHAT, TOOLS) if name == "qwen_tools" else (CHAT, None)
    expected = oracle.apply_chat_template(
        chat,
        tools=tools,
        chat_template=TEMPLATES[name],
        tokenize=False,
        add_generation_prompt=True,
        **extra,
    )
    made = render(chat, TEMPLATES[name], tools=tools, chat_template_kwargs=extra)
    assert made == expected
    assert "東京" in made or name == "llama3"


@pytest.mark.parametrize("name", ["chatml", "llama3", "qwen_tools", "either"])
@pytest.mark.parametrize("final", ["The answer is", "The answer is ", " 4 and\n", "4"])
def test_continuing_the_final_message_equals_transformers(
    name: str, final: str, oracle: Any
) -> None:
    chat = [*CHAT[:2], {"role": "assistant", "content": final}]
    expected = oracle.apply_chat_template(
        chat, chat_template=TEMPLATES[name], tokenize=False, continue_final_message=True
    )
    made = render(chat, TEMPLATES[name], add_generation_prompt=False, continue_final_message=True)
    assert made == expected
    assert made.endswith(final if name != "llama3" else final.strip())


def test_continuing_parts_continues_the_last_text() -> None:
    chat = [USER, {"role": "assistant", "content": [{"type": "text", "text": "4 is"}]}]
    options = {"add_generation_prompt": False, "continue_final_message": True}
    assert render(chat, PARTS, **options).endswith("<assistant>4 is")


def test_calls_and_refusals_of_older_clients_are_read() -> None:
    """With what newer ones write beside them: null for each key that says nothing."""
    call, answer = {"name": "weather", "arguments": '{"city": "東京"}'}, '{"temp": 20}'
    nothing = {"function_call": None, "tool_calls": None, "refusal": None}
    older = [
        USER,
        {"role": "assistant", "content": None, **nothing, "function_call": call},
        {"role": "function", "name": "weather", "content": answer},
        {"role": "assistant", "content": None, **nothing, "refusal": "I will not."},
        USER,
    ]
    newer = [
        USER,
        {"role": "assistant", "tool_calls": [{"type": "function", "function": call}]},
        {"role": "tool", "name": "weather", "content": answer},
        {"role": "assistant", "content": "I will not."},
        USER,
    ]
    made = render(older, QWEN_TOOLS, tools=TOOLS)
    assert made == render(newer, QWEN_TOOLS, tools=TOOLS)
    assert "東京" in made.split("</tools>")[1] and "I will not." in made and answer in made
    reads_older = "{% for m in messages %}{{ m.role }} {{ m.function_call }};{% endfor %}"
    assert render(older[1:3], reads_older) == f"assistant {call};function ;"


def test_arguments_given_as_json_text_are_read() -> None:
    chat = copy.deepcopy(TOOL_CHAT)
    chat[1]["tool_calls"][0]["function"]["arguments"] = '{"city": "東京"}'  # type: ignore[index]
    assert render(chat, QWEN_TOOLS) == render(TOOL_CHAT, QWEN_TOOLS)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("said", [{}, {"content": None}])
def test_a_message_of_calls_alone_has_no_text(name: str, said: dict[str, Any]) -> None:
    user, calls = TOOL_CHAT[0], cast(dict[str, Any], TOOL_CHAT[1])
    chat, empty = [user, {**calls, **said}], [user, {**calls, "content": ""}]
    assert render(chat, TEMPLATES[name]) == render(empty, TEMPLATES[name])
    asks = "{% for m in messages %}{{ m.tool_calls if m.content is none else m.content }};"
    asks += "{% endfor %}"
    assert render(chat, asks).endswith("}];")


def test_text_parts_become_what_the_template_wants() -> None:
    parts = [{"type": "text", "text": "a"}, "b", {"type": "input_text", "text": "c"}]
    assert not compile_template(CHATML).takes_parts
    assert "user\na\nb\nc<|im_end|>" in render(user(parts), CHATML)
    assert render(user(parts), PARTS) == "<user>abc<assistant>"
    assert render(user("abc"), PARTS) == "<user>abc<assistant>"
    assert render(user("abc"), EITHER) == "<user>abc"
    assert render(user(parts), EITHER) == "<user>[a][b][c]"
    assert render(user(parts), EITHER, content_format="string") == "<user>a\nb\nc"
    assert render(user("abc"), EITHER, content_format="openai") == "<user>[abc]"


def test_the_template_is_the_one_given_else_the_models() -> None:
    own = {"default": "A", "tool_use": "B"}
    assert choose_template(None, own) == "A"
    assert choose_template(None, own, with_tools=True) == "B"
    assert choose_template("tool_use", own) == "B"
    assert choose_template("{{ 1 }}", own) == "{{ 1 }}"
    with pytest.raises(InvalidPrompt, match="no chat template"):
        choose_template(None, {})
    with pytest.raises(InvalidPrompt, match="a, b"):
        choose_template(None, {"b": "", "a": ""})


def test_a_template_may_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text(CHATML, encoding="utf-8")
    assert read_template(tmp_path / "t.jinja") == read_template(str(tmp_path / "t.jinja")) == CHATML
    assert read_template(CHATML) == CHATML
    with pytest.raises(InvalidOption, match=r"missing\.jinja"):
        read_template("missing.jinja")


def test_one_conversation_is_told_from_several() -> None:
    assert is_conversation(CHAT)
    assert not is_conversation([CHAT, CHAT])
    assert not is_conversation([])
    assert not is_conversation("hello")


def test_each_conversation_gives_its_text_or_its_error(byte_bpe: Tokenizer) -> None:
    chats = [CHAT, [], [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]]
    made = render_conversations(chats, byte_bpe, chat_template=CHATML, first_index=5)
    assert made[0] == render_conversation(CHAT, byte_bpe, chat_template=CHATML)
    assert isinstance(made[1], InvalidPrompt) and made[1].index == 6
    assert isinstance(made[2], NotSupported) and str(made[2]).startswith("prompt 7: ")


def test_the_callers_messages_are_not_written_to() -> None:
    chat = [USER, {"role": "assistant", "content": [{"type": "text", "text": "4 is"}]}]
    calls = copy.deepcopy(TOOL_CHAT)
    calls[1]["tool_calls"][0]["function"]["arguments"] = "{}"  # type: ignore[index]
    tools, kwargs = copy.deepcopy(TOOLS), {"list": [1]}
    before = copy.deepcopy((chat, calls, tools, kwargs))
    render(chat, PARTS, add_generation_prompt=False, continue_final_message=True)
    render(calls, QWEN_TOOLS, tools=tools, chat_template_kwargs=kwargs)
    assert (chat, calls, tools, kwargs) == before


@pytest.mark.parametrize(
    ("messages", "error", "words"),
    [
        ([], InvalidPrompt, "empty"),
        ("hello", InvalidPrompt, "list of messages"),
        ({"role": "user", "content": "x"}, InvalidPrompt, "list of messages"),
        (["hello"], InvalidPrompt, r"messages\[0\] is a str"),
        ([USER, 3], InvalidPrompt, r"messages\[1\] is a int"),
        ([{"content": "x"}], InvalidPrompt, "role"),
        ([{"role": 3, "content": "x"}], InvalidPrompt, "role"),
        ([{"role": "user"}], InvalidPrompt, "neither"),
        (user(3), InvalidPrompt, "content is a int"),
        (user([3]), InvalidPrompt, r"content\[0\] is a int"),
        (user([{"type": "text"}]), InvalidPrompt, "no text"),
        (user([{"type": "text", "text": 3}]), InvalidPrompt, "no text"),
        (user([{"type": "poem", "text": "x"}]), InvalidPrompt, "poem"),
        (user(object()), InvalidPrompt, r"messages\[0\].content is a object"),
        (user([{"type": "image_url", "image_url": {"url": "x"}}]), NotSupported, "image_url"),
        (user([{"type": "image"}]), NotSupported, "type 'image'"),
        (user([{"type": "text", "text": "a"}, {"type": "video"}]), NotSupported, "type 'video'"),
        (user([{"type": "input_audio", "input_audio": {}}]), NotSupported, "input_audio"),
        (user([{"type": "video", "video": "x"}]), NotSupported, "video"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
            InvalidPrompt,
            "not JSON",
        ),
    ],
)
def test_bad_messages_are_named(messages: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        render(messages, CHATML)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"content_format": "xml"}, "content_format"),
        ({"continue_final_message": True}, "add_generation_prompt=False"),
        ({"tools": "weather"}, "tools is a list"),
        ({"tools": [len]}, r"tools\[0\]"),
        ({"documents": [1]}, r"documents\[0\]"),
        ({"documents": [{"text": "x"}]}, "does not read documents"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"messages": []}}, "messages"),
        ({"chat_template_kwargs": {"tokenize": True}}, "tokenize"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template"),
        ({"chat_template_kwargs": {"f": len}}, "builtin_function"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidPrompt, match=words):
        render([USER], CHATML, **options)


def test_what_the_template_says_reaches_the_caller() -> None:
    with pytest.raises(InvalidPrompt, match="Roles must alternate"):
        render([USER, USER], MISTRAL)
    with pytest.raises(InvalidPrompt, match="does not compile"):
        render([USER], "{% for x in %}")
    with pytest.raises(InvalidPrompt, match="undefined"):
        render([USER], "{{ nothing.at.all }}")
    drops_it = "{% for m in messages %}{{ m.role }}{% endfor %}"
    with pytest.raises(InvalidPrompt, match="leaves out"):
        render([USER], drops_it, add_generation_prompt=False, continue_final_message=True)


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(1000000000) %}{{ i }}{% endfor %}",
        "{% for i in range(9000) %}{% for j in range(9000) %}{% endfor %}{% endfor %}",
        "{{ 'x' * 1000000000 }}",
        "{{ 1000000000 * 'x' }}",
        "{{ [0] * 1000000000 }}",
        "{{ 10 ** 1000000000 }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '{:>1000000000}'.format(1) }}",
        "{{ '{:>{}}'.format(1, 1000000000) }}",
        "{{ 'x'.center(1000000000) }}{{ 'x'.ljust(width=1000000000) }}",
        "{{ 'x' | center(1000000000) }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_templates_that_would_fill_memory_are_stopped(template: str) -> None:
    started = time.process_time()
    with pytest.raises(InvalidPrompt):
        render([USER], template)
    assert time.process_time() - started < 2


def test_the_size_of_a_rendered_chat_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.inputs.metering.MOST_CHARACTERS", 1000)
    with pytest.raises(InvalidPrompt, match="more than 1,000 characters"):
        render([USER], "{% for i in range(500) %}{{ 'xxx' }}{% endfor %}")


def test_a_template_is_compiled_once() -> None:
    assert compile_template(CHATML) is compile_template(CHATML)


def test_methods_filters_and_operators_are_as_in_transformers(oracle: Any) -> None:
    """Everything that is counted, in loops and out of them, on short and on long texts."""
    short = ["a b", " <think>x</think>\n\n y ", "É😀", "1,2", ""]
    messages = [{"role": "user", "content": text * times} for times in (1, 3000) for text in short]
    template = """
{%- macro shout(x, y='!') %}{{ x|upper }}{{ y }}{% endmacro %}
{%- set ns = namespace(n=0, all='', list=[]) %}
{%- for m in messages %}
  {%- set c = m['content'] %}
  {%- set ns.n = ns.n + 1 %}{% set ns.all = ns.all + c[:2] ~ ns.n %}
  {%- set ns.list = ns.list + [c|length] %}
  {{- c.strip() + c.split('</think>')[-1].lstrip('\\n') + c.replace('a', 'bb') }}
  {{- c.upper() ~ c.startswith('a') ~ c.endswith(('y', 'b')) ~ c.find('x') }}
  {{- '{}-{x}'.format(ns.n, x=loop.index) + '%d %s' % (ns.n, loop.last) }}
  {{- ', '.join(c.split(',')) + c|trim|title|truncate(20) + shout(c[-1:], y='?') }}
  {{- (c ~ 1)|replace('1', 'one') ~ c|default('none') ~ [c[:3], 2]|tojson ~ (c == c[::1]) }}
  {%- if loop.previtem is defined and loop.previtem.content in c %}{{ 'in' }}{% endif %}
  {%- if loop.index % 2 == 0 and not loop.first %}{{ loop.cycle('even', 'odd') }}{% endif %}
{%- endfor %}
{%- for m in messages if m.content %}{{ loop.length }}{{ loop.index }}{% endfor %}
{{- ns.all }}{{ ns.list }}{{ ns.list|sum }}{{ ns.list|sort|join('-') }}
{{- [[1], [2]]|sum(start=[]) }}
{{- messages|map(attribute='role')|unique|list }}
{{- messages|selectattr('role', 'equalto', 'x')|list }}
{{- {'a': 1, 'b': [1, none, 2.5]}|tojson(indent=2) }}{{ {'a': 1}.items()|list }}{{ 7 * 'ab' }}
{{- 3 * 2 + 1 - 4 / 2 ** 2 // 1 }}{{ 'x'|center(9) }}{{ 'a\\nb'|indent(3, true) }}
{{- 2.567|round(1) }}
{{- range(3)|list }}{{ '%05.1f|%x' % (2.5, 255) }}
{{- 'abc'|list|last }}{{ dict(a=1).get('b', 'no') }}
"""
    expected = oracle.apply_chat_template(messages, chat_template=template, tokenize=False)
    assert render(messages, template, add_generation_prompt=False) == expected
