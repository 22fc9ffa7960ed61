"""Bodies of messages: what they ask for as a chat, and what is refused in words."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from quire.anthropic_api.errors import error_body
from quire.anthropic_api.messages import COUNTED, read_counted, read_message
from quire.openai_api.errors import ApiError, server_error, too_long
from quire.openai_api.fields import MESSAGES, TABLE

ASK = [{"role": "user", "content": "x"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"name": "go", "description": "Goes", "input_schema": SCHEMA}
CALL = {"type": "tool_use", "id": "a", "name": "go", "input": {"city": "Rome"}}
PNG = {"type": "base64", "media_type": "image/png", "data": "AAAA"}


def read(messages: Any = ASK, **more: Any) -> Any:
    return read_message({"messages": messages, "max_tokens": 9, **more}, None)


def chat(messages: Any, **more: Any) -> Any:
    return read(messages, **more).rows[0]["messages"]


def text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def test_blocks_become_the_turns_of_a_chat() -> None:
    told = [
        {"role": "user", "content": [text("a"), text("b")]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "zzz"},
                text("c"),
                text("d"),
                CALL,
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "far"},
                text("and?"),
            ],
        },
    ]
    assert chat(told, system=[text("s"), text("t")]) == [
        {"role": "system", "content": [text("s"), text("t")]},
        {"role": "user", "content": [text("a"), text("b")]},
        {
            "role": "assistant",
            "content": "cd",
            "reasoning_content": "hm",
            "tool_calls": [
                {
                    "id": "a",
                    "type": "function",
                    "function": {"name": "go", "arguments": {"city": "Rome"}},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "a", "name": "go", "content": "far"},
        {"role": "user", "content": "and?"},
    ]


def test_turns_of_one_speaker_are_one() -> None:
    said = [("user", "a"), ("user", "b"), ("assistant", "c"), ("assistant", "d"), ("user", "e")]
    told = chat([{"role": role, "content": content} for role, content in said])
    assert [turn["role"] for turn in told] == ["user", "assistant", "user"]
    assert told[0]["content"] == [text("a"), text("b")] and told[1]["content"] == "cd"


@pytest.mark.parametrize("content", [[], ""])
def test_an_empty_turn_is_one(content: Any) -> None:
    told = chat([*ASK, {"role": "assistant", "content": content}, *ASK])
    assert [turn["content"] for turn in told] == ["x", "", "x"]


def test_results_may_have_images_or_nothing_or_be_errors() -> None:
    image = {"type": "image", "source": PNG}
    call = {"role": "assistant", "content": [CALL, {**CALL, "id": "b"}, {**CALL, "id": "c"}]}
    results = [
        {"type": "tool_result", "tool_use_id": "a", "content": [text("t"), image]},
        {"type": "tool_result", "tool_use_id": "b"},
        {"type": "tool_result", "tool_use_id": "c", "content": "no", "is_error": True},
    ]
    first, second, third = chat([*ASK, call, {"role": "user", "content": results}])[2:]
    url = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    assert first["content"] == [text("t"), url]
    assert second["content"] == ""
    assert third["content"] == [text("Error:"), text("no")]


def test_the_place_of_an_image_is_the_bodys() -> None:
    image = {"type": "image", "source": {"type": "url", "url": "https://a.example/b.png"}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [image]}
    told = [
        {"role": "user", "content": "x"},
        {"role": "user", "content": [image]},
        {"role": "assistant", "content": [CALL]},
        {"role": "user", "content": [result]},
    ]
    fields = read(told, system="s").fields
    for place, own in (
        ("messages[1].content[1]", "messages[1].content[0]"),
        ("messages[3].content[0]", "messages[3].content[0].content[0]"),
    ):
        error = ApiError(400, f"{place} is no image", param="messages").named(fields)
        assert error.message == f"{own} is no image"


def test_a_line_about_accounts_is_no_part_of_the_prompt() -> None:
    header = text("x-anthropic-billing-header: cc_version=2; cch=123;")
    assert chat(ASK, system=[header, text("s")])[0] == {"role": "system", "content": "s"}
    assert chat(ASK, system=[header]) == ASK
    assert chat([{"role": "user", "content": [header]}])[0]["content"] == header["text"]


def test_an_assistants_last_message_is_gone_on_with() -> None:
    asked = read([*ASK, {"role": "assistant", "content": "The"}])
    assert asked.rows[0]["chat"] == {"continue_final_message": True, "add_generation_prompt": False}
    assert "chat" in read().rows[0] and not read().rows[0]["chat"]
    with pytest.raises(ApiError, match="tool_result"):
        read([*ASK, {"role": "assistant", "content": [CALL]}])


def test_parameters_are_those_of_a_chat() -> None:
    own = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "seed": 3}
    asked = read(**own, stop_sequences=["END"], stream=True, service_tier="auto")
    assert asked.rows[0]["params"] == {**own, "stop": ["END"], "max_tokens": 9}
    assert asked.rows[0]["stream"] and asked.stream and not asked.is_batch
    assert read(service_tier="flex").is_batch


@pytest.mark.parametrize(
    ("choice", "forced"), [("auto", None), ("any", ""), ("tool", "go"), ("none", None)]
)
def test_tools_are_offered_and_forced(choice: str, forced: str | None) -> None:
    wanted = {"type": choice, **({"name": "go"} if choice == "tool" else {})}
    tools = read(tools=[{**TOOL, "cache_control": {"type": "ephemeral"}}], tool_choice=wanted).tools
    assert tools.forced == forced and bool(tools.offered) == (choice != "none")
    if tools.offered:
        function = {"name": "go", "description": "Goes", "parameters": SCHEMA}
        assert tools.offered == ({"type": "function", "function": function},)
    alone = read(tools=[TOOL], tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert alone.tools.at_most == 1


def test_thinking_is_a_switch_of_the_template() -> None:
    for kind, thinks in (("enabled", True), ("adaptive", True), ("disabled", False)):
        asked = read(thinking={"type": kind}, chat_template_kwargs={"a": 1})
        told = asked.rows[0]["chat"]["chat_template_kwargs"]
        assert told == {"enable_thinking": thinks, "thinking": thinks, "a": 1}
        assert asked.reasoning == thinks
    assert (
        read().reasoning and not read(thinking={"type": "adaptive", "display": "omitted"}).reasoning
    )
    own = read(thinking={"type": "enabled"}, chat_template_kwargs={"thinking": "deep"})
    assert own.rows[0]["chat"]["chat_template_kwargs"]["thinking"] == "deep"


def test_a_budget_for_thoughts_is_for_models_that_mark_them() -> None:
    body = {"messages": ASK, "max_tokens": 9, "thinking": {"type": "enabled", "budget_tokens": 5}}
    form = {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}
    forced = {"tools": [TOOL], "tool_choice": {"type": "any"}}
    for bounds, more, expected in (
        (True, {}, 5),
        (False, {}, None),
        (True, form, None),
        (True, forced, None),
    ):
        asked = read_message({**body, **more}, None, bounds_thoughts=bounds)
        assert asked.rows[0]["params"].get("thinking_token_budget") == expected


@pytest.mark.parametrize("field", ["output_config", "output_format"])
def test_a_format_is_enforced(field: str) -> None:
    form = {"type": "json_schema", "schema": SCHEMA}
    asked = read(**{field: form if field == "output_format" else {"format": form, "effort": "low"}})
    assert asked.rows[0]["params"]["structured_outputs"] == {"json": SCHEMA}
    assert asked.fields["json"] == "output_config.format.schema"
    if field == "output_config":
        assert asked.rows[0]["chat"]["chat_template_kwargs"] == {"reasoning_effort": "low"}


ONCE = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
RESULT = {"type": "tool_result", "tool_use_id": "a", "is_error": False, **ONCE}
AGENT: dict[str, Any] = {
    "max_tokens": 9,
    "messages": [
        {"role": "user", "content": [text("<reminder>"), {"type": "image", "source": PNG}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {**CALL, "caller": {"type": "direct"}},
            ],
        },
        {
            "role": "user",
            "content": [{**RESULT, "content": [{**text("ok"), **ONCE}]}, text("and then?")],
        },
        {"role": "system", "content": "be quick"},
    ],
    "system": [text("x-anthropic-billing-header: a"), {**text("You code."), **ONCE}],
    "tools": [{**TOOL, "eager_input_streaming": True, "defer_loading": False, "strict": True}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 5, "display": "summarized"},
    "output_config": {"effort": "high", "format": {"type": "json_schema", "schema": SCHEMA}},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "metadata": {"user_id": "u"},
    "stop_sequences": ["END"],
    "stream": True,
    "temperature": 1,
    **ONCE,
}


def test_what_an_agent_sends_is_read() -> None:
    asked = read_message(AGENT, None, bounds_thoughts=True)
    [row] = asked.rows
    roles = [turn["role"] for turn in row["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "user", "system"]
    assert "ephemeral" not in str(row) and asked.tools.offered and asked.stream


def test_edits_that_would_change_the_prompt_are_refused() -> None:
    keeps = {"type": "clear_thinking_20251015", "keep": "all"}
    for edits in ([], None, [keeps], [{**keeps, "keep": {"type": "all"}}]):
        read(context_management={"edits": edits})
    for edit in ({"type": "clear_tool_uses_20250919"}, {**keeps, "keep": 1}, {**keeps, "x": 1}, 1):
        with pytest.raises(ApiError, match="leaves nothing out") as caught:
            read(context_management={"edits": [keeps, edit]})
        assert caught.value.code == "not_supported"


ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 2**70, 0.5, "", "x", "\0", "text", "tool_use", [], [None], [[]], {}),
    *({"type": []}, {"type": {}}, [{"type": "text"}], [{"type": "tool_result"}], {"x": {}}),
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every list or object of a body, with each key that it has."""
    keys = value if isinstance(value, dict) else range(len(value) if isinstance(value, list) else 0)
    found = [(value, key) for key in keys]
    return found + [one for key in keys for one in places(value[key])]


def test_a_body_with_anything_anywhere_is_read_or_refused() -> None:
    refused = 0
    for i in range(len(places(AGENT))):
        for odd in ODD:
            body = copy.deepcopy(AGENT)
            holder, key = places(body)[i]
            holder[key] = copy.deepcopy(odd)
            try:
                read_message(body, None, bounds_thoughts=True)
            except ApiError as error:
                refused += 1
                assert error.status == 400 and error_body(error, "")["error"]["message"]
    assert refused > 500


def user(*blocks: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"messages": []}, "at least one message"),
        ({"messages": ["x"]}, r"messages\[0\] is an object"),
        (
            {"messages": [{"role": "tool", "content": "x"}]},
            r"messages\[0\].role is user, assistant",
        ),
        ({"messages": [{"role": [], "content": "x"}]}, r"messages\[0\].role"),
        ({"messages": [{"role": "user"}]}, r"messages\[0\].content is text or a list"),
        (user("x"), r"messages\[0\].content\[0\] is an object with a type"),
        (user({"type": ["text"]}), r"content\[0\] is an object with a type"),
        (user({"type": "text"}), r"content\[0\].text is text, not None"),
        (user({"type": "document", "source": {}}), "'document', and here text and image and tool"),
        (user(CALL), "'tool_use'"),
        (user({"type": "image"}), "source is base64 or url"),
        (user({"type": "image", "source": {"type": "file", "file_id": "f"}}), "base64 or url"),
        (user({"type": "image", "source": {**PNG, "media_type": "x,y"}}), "media_type is like"),
        (user({"type": "image", "source": {**PNG, "data": 5}}), "source.data is text"),
        (user({"type": "tool_result", "tool_use_id": "b"}), "which no tool_use before it has"),
        (user({"type": "tool_result", "tool_use_id": []}), "which no tool_use before it has"),
        (
            {"messages": [*ASK, {"role": "assistant", "content": [{**CALL, "input": "x"}]}]},
            "input is",
        ),
        ({"messages": [*ASK, {"role": "assistant", "content": [{**CALL, "id": 5}]}]}, "id is text"),
        ({"system": [{"type": "image", "source": PNG}]}, r"system\[0\] is of type 'image'"),
        ({"system": [5]}, r"system\[0\] is an object"),
        ({"stop_sequences": [5]}, "stop_sequences is a list of texts"),
        ({"stop_sequences": ["x"] * 65}, "stop_sequences has at most 64"),
        ({"tools": [5]}, r"tools\[0\]"),
        ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "functions alone are built"),
        ({"tools": [{"name": "go"}]}, r"tools\[0\] has a name and an input_schema"),
        ({"tools": [{**TOOL, "description": 5}]}, r"tools\[0\].description"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "the name of one"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "b"}}, "not among the tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "required"}}, "auto, any, tool or none"),
        ({"tools": [TOOL], "tool_choice": {}}, "auto, any, tool or none"),
        ({"tool_choice": {"type": "any"}}, "needs tools"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": "x"}},
            "disable_parallel_tool_use is true or false",
        ),
        ({"thinking": {"type": "deep"}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": True}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "display": 5}}, "thinking.display"),
        ({"output_config": {"efort": "low"}}, "output_config has effort and format"),
        ({"output_config": {"effort": 5}}, "output_config.effort is text"),
        (
            {"output_config": {"format": {"type": "xml"}}},
            "output_config.format is of type json_sch",
        ),
        ({"output_format": {"type": "json_schema"}}, "output_format is of type json_schema"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_the_words_of_the_body(
    more: dict[str, Any], words: str
) -> None:
    with pytest.raises(ApiError, match=words) as caught:
        read(**{"messages": ASK, **more})
    assert caught.value.status == 400
    assert (caught.value.param or "").partition(".")[0] in (*more, "stop_sequences")


def test_what_is_counted_is_what_is_asked() -> None:
    body = {"messages": ASK, "system": "s", "tools": [TOOL], "thinking": {"type": "disabled"}}
    row, fields = read_counted(body, None)
    asked = read_message({**body, "max_tokens": 1}, None)
    assert row == {name: asked.rows[0][name] for name in ("messages", "chat")}
    assert fields["prompt"] == "messages"
    with pytest.raises(ApiError, match="belongs to /v1/messages") as caught:
        read_counted({**body, "max_tokens": 5}, None)
    assert caught.value.code == "unknown_parameter" and COUNTED.keys() < TABLE[MESSAGES].keys()


def test_refusals_have_the_names_that_clients_know() -> None:
    for status, kind in (
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
    ):
        told = error_body(ApiError(status, "why"), "req_1")
        assert told == {
            "type": "error",
            "error": {"type": kind, "message": "why"},
            "request_id": "req_1",
        }


def test_refusals_name_the_field_in_their_words() -> None:
    def words(error: ApiError) -> str:
        return error_body(error, "")["error"]["message"]

    assert words(ApiError(400, "it is wrong", param="top_p")) == "top_p: it is wrong"
    assert words(ApiError(400, "top_p is wrong", param="top_p")) == "top_p is wrong"
    assert words(too_long(9, "it has 10")).startswith("prompt is too long: ")
    assert words(server_error("it failed")) == "it failed"


def test_a_thread_is_refused_so_that_clients_go_on_without() -> None:
    with pytest.raises(ApiError) as caught:
        read(thread={"type": "create"})
    details = error_body(caught.value, "")["error"]["details"]
    assert details["error_code"] == "thread_unsupported_request"
