"""Tools for chat templates without support for tools: written into the messages, in the form of
Hermes and Qwen models, in which the answers are parsed, too."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from quire.errors import InvalidPrompt
from quire.params.rules import show

Message = dict[str, Any]
_OFFER = """\
You may call these functions; each line is one, as JSON:
<tools>
{tools}
</tools>
To call one, write its name and its arguments as JSON, like this:
<tool_call>
{{"name": "name of the function", "arguments": {{"name of an argument": "its value"}}}}
</tool_call>
What it gives comes back between <tool_response> and </tool_response>."""


def offered_in_text(chat: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The chat with the tools at the end of its system message, or, without one, before the user's
    first message: some templates allow no system message, others have their own."""
    offer = _OFFER.format(tools="\n".join(_json(tool) for tool in tools))
    if chat[0]["role"] == "system":
        return [_with_text(chat[0], behind=offer), *chat[1:]]
    for i, message in enumerate(chat):
        if message["role"] == "user":
            return [*chat[:i], _with_text(message, before=offer), *chat[i + 1 :]]
    empty: Message = {"role": "user", "content": [] if isinstance(chat[0]["content"], list) else ""}
    return [_with_text(empty, before=offer), *chat]


def calls_in_text(chat: Sequence[Message]) -> list[Message]:
    """The chat with calls as text of the assistant, and results of tools as text of the user.
    Consecutive results are one message, since many templates require that user and assistant
    alternate."""
    made: list[Message] = []
    was_tool = False
    for i, message in enumerate(chat):
        is_tool = message["role"] == "tool"
        if is_tool:
            message = _answered(message)
        elif calls := message.get("tool_calls"):
            message = _with_text(message, behind=_calls(calls, i), between="\n")
            del message["tool_calls"]
        if is_tool and was_tool:
            made[-1] = _joined(made[-1], message)
        else:
            made.append(message)
        was_tool = is_tool
    return made


def _answered(message: Message) -> Message:
    opened = _with_text(message, before="<tool_response>", between="\n")
    return {
        "role": "user",
        "content": _with_text(opened, behind="</tool_response>", between="\n")["content"],
    }


def _joined(first: Message, second: Message) -> Message:
    one, other = first["content"], second["content"]
    if isinstance(one, str) and isinstance(other, str):
        return {**first, "content": f"{one}\n{other}"}
    return {**first, "content": [*one, *other]}


def _calls(calls: Any, i: int) -> str:
    written = []
    for call in calls if isinstance(calls, list) else [calls]:
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InvalidPrompt(
                f"messages[{i}].tool_calls is a list of calls, each with a function that has a "
                f"name; {show(call)} is none",
                parameter="messages",
            )
        told = {"name": function["name"], "arguments": function.get("arguments", {})}
        written.append(f"<tool_call>\n{_json(told)}\n</tool_call>")
    return "\n".join(written)


def _with_text(
    message: Message, *, before: str = "", behind: str = "", between: str = "\n\n"
) -> Message:
    """A copy with more text; content that is a list gets it as a part."""
    content = message.get("content")
    if isinstance(content, list):
        parts = [[{"type": "text", "text": text}] if text else [] for text in (before, behind)]
        return {**message, "content": [*parts[0], *content, *parts[1]]}
    return {**message, "content": between.join(filter(None, (before, content, behind)))}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
