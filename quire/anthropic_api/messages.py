"""/v1/messages: makes of a body in Anthropic's form the same request as of a chat."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from quire.anthropic_api.blocks import chat_messages
from quire.openai_api.asks import Asked, Row, check_model, name_model, read_chat, read_fields
from quire.openai_api.errors import ApiError, bad, not_supported
from quire.openai_api.field import Body, checked_fields
from quire.openai_api.fields import MESSAGES, TABLE
from quire.openai_api.tool_choice import no_function
from quire.params.rules import show

# Fields that a chat has under the same name.
_SAME = (
    *("model", "stream", "max_tokens", "temperature", "top_p", "top_k", "min_p", "seed"),
    *("repetition_penalty", "service_tier", "priority", "cache_salt", "truncate_prompt_tokens"),
)
# Fields of a chat that have another name here.
_CALLED = {
    "stop": "stop_sequences",
    "thinking_token_budget": "thinking.budget_tokens",
    "reasoning_effort": "output_config.effort",
}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_THINKING = ("enabled", "adaptive", "between_tools", "disabled")
_EMPTY_EDITS = [
    {"type": "clear_thinking_20251015", "keep": keep} for keep in ("all", {"type": "all"})
]
# Fields that determine the number of a prompt's tokens, and fields that may come with them.
COUNTED: Body = {
    name: TABLE[MESSAGES][name]
    for name in (
        *("model", "messages", "system", "tools", "tool_choice", "thinking", "output_config"),
        *("output_format", "chat_template_kwargs", "cache_control", "context_management"),
        *("mcp_servers", "speed"),
    )
}


def read_message(
    body: Any, names: Collection[str] | None, *, bounds_thoughts: bool = False
) -> Asked:
    """Read a body; raises ApiError. `bounds_thoughts`: whether the model marks its thoughts, so
    that a budget for them can be followed."""
    given = read_fields(MESSAGES, body, names)
    asked = _read(given, bounds_thoughts=bounds_thoughts)
    name_model(asked.rows, given.get("model"), names)
    return asked


def read_counted(body: Any, names: Collection[str] | None) -> tuple[Row, Mapping[str, str]]:
    """The prompt whose tokens are to be counted, and the body's names for its fields."""
    given = checked_fields(COUNTED, body, elsewhere={MESSAGES: TABLE[MESSAGES]})
    check_model(given.get("model"), names)
    asked = _read(given)
    [row] = asked.rows
    return {name: row[name] for name in ("messages", "chat")}, asked.fields


def _read(given: Mapping[str, Any], *, bounds_thoughts: bool = False) -> Asked:
    if not given["messages"]:
        raise bad("messages has at least one message", param="messages")
    _refuse_edits(given.get("context_management", {}))
    messages, places = chat_messages(given.get("system"), given["messages"])
    chat: dict[str, Any] = {name: given[name] for name in _SAME if name in given}
    chat |= _conversation(messages) | _tools(given) | _output(given) | _stops(given)
    is_free = "response_format" not in chat and chat.get("tool_choice", "auto") in ("auto", "none")
    chat |= _thoughts(given, bounds=bounds_thoughts and is_free)
    try:
        asked = read_chat(chat)
    except ApiError as error:
        raise error.named(_CALLED) from None
    fields = {name: _called(field) for name, field in {**_CALLED, **asked.fields}.items()}
    return replace(asked, endpoint=MESSAGES, fields={**fields, **places})


def _refuse_edits(management: Mapping[str, Any]) -> None:
    """Refuse edits that would change the prompt; agents send one that changes nothing."""
    edits = [] if management.get("edits") is None else management["edits"]
    if set(management) - {"edits"} or not isinstance(edits, list):
        raise bad("context_management has edits, a list", param="context_management")
    for edit in edits:
        if edit not in _EMPTY_EDITS:
            raise not_supported(
                "context_management leaves nothing out of a prompt here, but clear_thinking with "
                "keep: all. Send the messages that the model is to read",
                param="context_management",
            )


def _called(field: str) -> str:
    """The name of a chat's field in this API."""
    flat = re.sub(r"^response_format(\.json_schema)?\.", "output_config.format.", field)
    return _CALLED.get(flat, flat.replace(".function.parameters", ".input_schema"))


def _conversation(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The messages; if the last one is the assistant's, the answer continues it."""
    last = messages[-1] if messages else {}
    if last.get("role") != "assistant":
        return {"messages": messages}
    if "tool_calls" in last:
        raise bad(
            "the last message calls tools, and cannot be gone on with: send their results, each a "
            "tool_result of the user",
            param="messages",
        )
    return {"messages": messages, "continue_final_message": True}


def _tools(given: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "tools" in given:
        found["tools"] = [_tool(tool, i) for i, tool in enumerate(given["tools"])]
    choice = given.get("tool_choice")
    if choice is None:
        return found
    kind, alone = choice.get("type"), choice.get("disable_parallel_tool_use")
    if alone is not None and not isinstance(alone, bool):
        raise bad(
            f"tool_choice.disable_parallel_tool_use is true or false, not {show(alone)}",
            param="tool_choice",
        )
    if alone:
        found["parallel_tool_calls"] = False
    if kind == "tool":
        if not isinstance(choice.get("name"), str):
            raise bad("tool_choice of type tool has the name of one", param="tool_choice")
        named = {"type": "function", "function": {"name": choice["name"]}}
        return {**found, "tool_choice": named}
    if not isinstance(kind, str) or kind not in _CHOICES:
        raise bad(
            f"tool_choice.type is auto, any, tool or none, not {show(kind)}", param="tool_choice"
        )
    return {**found, "tool_choice": _CHOICES[kind]}


def _tool(tool: Any, i: int) -> dict[str, Any]:
    """A tool as a function of a chat."""
    where = f"tools[{i}]"
    if not isinstance(tool, Mapping) or tool.get("type", "custom") not in (None, "custom"):
        raise no_function(tool, i)
    name, schema, about = (tool.get(key) for key in ("name", "input_schema", "description"))
    if not isinstance(name, str) or not isinstance(schema, dict):
        raise bad(f"{where} has a name and an input_schema, a JSON schema", param="tools")
    if about is not None and not isinstance(about, str):
        raise bad(f"{where}.description is text, not {show(about)}", param="tools")
    function = {"name": name, **({} if about is None else {"description": about})}
    return {"type": "function", "function": {**function, "parameters": schema}}


def _output(given: Mapping[str, Any]) -> dict[str, Any]:
    """The format of the answer, and the effort for it."""
    config, found = given.get("output_config", {}), dict[str, Any]()
    for name in config:
        if name not in ("effort", "format"):
            raise bad(
                f"output_config has effort and format, not {show(name)}", param="output_config"
            )
    effort, form = config.get("effort"), config.get("format")
    where = "output_config.format"
    if "output_format" in given:
        if form is not None:
            raise bad(f"output_format and {where} are the same; give one", param="output_format")
        form, where = given["output_format"], "output_format"
    if effort is not None:
        if not isinstance(effort, str):
            raise bad(f"output_config.effort is text, not {show(effort)}", param="output_config")
        found["reasoning_effort"] = effort
    if form is None:
        return found
    is_schema = isinstance(form, Mapping) and form.get("type") == "json_schema"
    if not is_schema or not isinstance(form.get("schema"), dict):
        raise bad(f"{where} is of type json_schema, with its schema", param=where.partition(".")[0])
    return {**found, "response_format": {"type": "json_schema", "schema": form["schema"]}}


def _stops(given: Mapping[str, Any]) -> dict[str, Any]:
    stops = given.get("stop_sequences")
    if stops is None:
        return {}
    if not all(isinstance(stop, str) for stop in stops):
        raise bad("stop_sequences is a list of texts", param="stop_sequences")
    return {"stop": stops}


def _thoughts(given: Mapping[str, Any], *, bounds: bool) -> dict[str, Any]:
    """Whether the model thinks, as variables of chat templates. Thoughts are left out of the answer
    if they were disabled or are to be omitted."""
    variables, thinking = given.get("chat_template_kwargs"), given.get("thinking")
    if thinking is None:
        return {} if variables is None else {"chat_template_kwargs": variables}
    kind, display = thinking.get("type"), thinking.get("display")
    if kind not in _THINKING:
        raise bad(
            f"thinking.type is one of {', '.join(_THINKING)}, not {show(kind)}", param="thinking"
        )
    if display not in (None, "summarized", "omitted"):
        raise bad(
            f"thinking.display is summarized or omitted, not {show(display)}", param="thinking"
        )
    budget = thinking.get("budget_tokens")
    if budget is not None and (type(budget) is not int or budget < 1):
        raise bad(
            f"thinking.budget_tokens is a whole number above 0, not {show(budget)}",
            param="thinking",
        )
    thinks = kind != "disabled"
    switches = {"enable_thinking": thinks, "thinking": thinks}
    found: dict[str, Any] = {
        "chat_template_kwargs": switches | (variables or {}),
        "include_reasoning": thinks and display != "omitted",
    }
    if bounds and kind == "enabled" and budget is not None:
        found["thinking_token_budget"] = budget
    return found
