"""/v1/responses for text, without stored conversations, translated to chats.

Nothing is stored, so every request brings its whole conversation.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from quire.openai_api.asks import Asked, name_model, read_chat, read_fields
from quire.openai_api.bodies import call_id, chat_score, parts_of
from quire.openai_api.errors import ApiError, bad, not_supported
from quire.openai_api.fields import RESPONSES
from quire.openai_api.outputs import Answer, Call, Output
from quire.openai_api.params import MOST_LOGPROBS, format_constraint, limited
from quire.openai_api.shapes import ResponseBody, ResponseUsage, ScoredToken, Status
from quire.openai_api.tool_choice import no_function
from quire.params.rules import show

Event = dict[str, Any]
# Fields that a chat has under the same name.
_SAME = (
    *("model", "stream", "temperature", "top_p", "service_tier", "priority", "cache_salt"),
    *("top_k", "min_p", "repetition_penalty", "seed", "chat_template_kwargs"),
    *("truncate_prompt_tokens", "tool_choice", "parallel_tool_calls"),
)
_LOGPROBS = "message.output_text.logprobs"  # a value of `include`
# Fields of a chat that have another name here.
_CALLED = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning",
    "response_format": "text",
}


def _called(field: str) -> str:
    """The name of a chat's field here; formats and functions have one level less."""
    flat = re.sub(r"^response_format(\.json_schema)?\.", "text.format.", field)
    return _CALLED.get(flat, flat.replace(".function.", "."))


def read_response(body: Any, names: Collection[str] | None) -> tuple[Asked, dict[str, Any]]:
    """The request in a body, and its fields, which the answer repeats; raises ApiError."""
    given = read_fields(RESPONSES, body, names)
    chat: dict[str, Any] = {name: given[name] for name in _SAME if name in given}
    chat["messages"], places = _messages(given)
    if "max_output_tokens" in given:
        chat["max_tokens"] = given["max_output_tokens"]
    if "tools" in given:
        chat["tools"] = [_tool(tool, i) for i, tool in enumerate(given["tools"])]
    form = given.get("text", {}).get("format")
    if form is not None:
        if not isinstance(form, Mapping):
            raise bad("text.format is an object", param="text")
        format_constraint(form, "text.format")  # so that an error has the name of this body
        chat["response_format"] = form
    effort = given.get("reasoning", {}).get("effort")
    if effort is not None:
        chat["reasoning_effort"] = effort
    top = limited("top_logprobs", given.get("top_logprobs", 0), 0, MOST_LOGPROBS)
    if top or _LOGPROBS in given.get("include", ()):
        chat |= {"logprobs": True, "top_logprobs": top}
    try:
        asked = read_chat(chat)
    except ApiError as error:
        raise error.named(_CALLED) from None
    fields = {name: _called(field) for name, field in {**_CALLED, **asked.fields}.items()} | places
    asked = replace(asked, endpoint=RESPONSES, fields=fields)
    name_model(asked.rows, given.get("model"), names)
    return asked, given


def _messages(given: Mapping[str, Any]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The conversation of a body as a chat, and the place of each message in the body."""
    asked = given["input"]
    items = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
    if not items:
        raise bad("input has at least one item", param="input")
    messages: list[dict[str, Any]] = []
    places: list[str] = []
    if "instructions" in given:
        messages.append({"role": "system", "content": given["instructions"]})
        places.append("instructions")
    for i, item in enumerate(items):
        message = _message(item, i)
        if not (messages and _joined(messages[-1], message)):
            messages.append(message)
            places.append("input" if items is not asked else f"input[{i}]")
    return messages, {f"messages[{i}]": place for i, place in enumerate(places)}


def _joined(turn: dict[str, Any], message: Mapping[str, Any]) -> bool:
    """Add the message to the turn before it, if possible; True if it was. In a chat thoughts, a
    text and calls are one message, in this order, and several calls are in one list."""
    if not turn["role"] == message["role"] == "assistant":
        return False
    if "tool_calls" in message:
        turn.setdefault("tool_calls", []).extend(message["tool_calls"])
        return True
    is_thought_alone = turn.keys() == {"role", "content", "reasoning_content"}
    if "reasoning_content" in message or not is_thought_alone or turn["content"]:
        return False
    turn["content"] = message["content"]
    return True


def _message(item: Any, i: int) -> dict[str, Any]:
    where = f"input[{i}]"
    if not isinstance(item, Mapping):
        raise bad(f"{where} is an object, not {show(item)}", param="input")
    kind = item.get("type", "message")
    if kind == "message" and "role" in item:
        return {"role": item["role"], "content": item.get("content")}
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments", "{}")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    if kind == "function_call_output":
        content = item.get("output")
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": content}
    if kind == "reasoning":
        return {"role": "assistant", "content": "", "reasoning_content": _reasoning(item, where)}
    raise not_supported(f"{where} is a message or a function's call or output", param="input")


def _reasoning(item: Mapping[str, Any], where: str) -> str:
    parts = item.get("content") or []
    if not isinstance(parts, list) or not all(
        isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in parts
    ):
        raise bad(f"{where}.content is a list of parts with a text", param="input")
    return "".join(part["text"] for part in parts)


def _tool(tool: Any, i: int) -> Any:
    """A function as a chat has it: its fields one level deeper."""
    if not isinstance(tool, Mapping) or tool.get("type") != "function":
        raise no_function(tool, i)
    inner = {name: value for name, value in tool.items() if name != "type" and value is not None}
    return {"type": "function", "function": inner}


@dataclass(frozen=True, slots=True)
class About:
    """The fields of a response that do not depend on the answer."""

    number: str
    created: int
    model: str
    given: Mapping[str, Any]

    def body(self, status: Status, output: list[Event], finished: Output | None) -> ResponseBody:
        given = self.given
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": f"resp_{self.number}",
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": cut,
            "instructions": given.get("instructions"),
            "max_output_tokens": given.get("max_output_tokens"),
            "metadata": given.get("metadata", {}),
            "model": self.model,
            "output": output,
            "parallel_tool_calls": given.get("parallel_tool_calls", True),
            "previous_response_id": None,
            "reasoning": {"effort": given.get("reasoning", {}).get("effort"), "summary": None},
            "store": False,
            "temperature": given.get("temperature", 1.0),
            "text": {"format": given.get("text", {}).get("format", {"type": "text"})},
            "tool_choice": given.get("tool_choice", "auto"),
            "tools": [{"strict": True, "parameters": {}, **t} for t in given.get("tools", [])],
            "top_p": given.get("top_p", 1.0),
            "truncation": "disabled",
            "usage": None if finished is None else _usage(finished),
        }


def _usage(output: Output) -> ResponseUsage:
    return {
        "input_tokens": output.prompt_tokens,
        "input_tokens_details": {"cached_tokens": output.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": output.output_tokens,
        "output_tokens_details": {"reasoning_tokens": output.reasoning_tokens},
        "total_tokens": output.prompt_tokens + output.output_tokens,
    }


def response_object(asked: Asked, output: Output, about: About) -> ResponseBody:
    [answer] = output.answers
    content, reasoning, calls = parts_of(asked, answer)
    items: list[Event] = []
    status = status_of(answer)
    if reasoning is not None and asked.reasoning:
        items.append(reasoning_item(about, len(items), reasoning))
    if content or not calls:
        scores = [chat_score(one) for one in answer.logprobs or ()]
        items.append(message_item(about, len(items), content, scores, status))
    for call in calls:
        items.append(call_item(about, len(items), call))
    return about.body(status, items, output)


def status_of(answer: Answer) -> Status:
    return "incomplete" if answer.finish_reason == "length" else "completed"


def text_part(text: str, scores: list[ScoredToken]) -> Event:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": scores}


def message_item(
    about: About,
    i: int,
    text: str | None,
    scores: list[ScoredToken],
    status: Status = "completed",
) -> Event:
    return {
        "id": f"msg_{about.number}_{i}",
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [] if text is None else [text_part(text, scores)],
    }


def reasoning_item(about: About, i: int, text: str | None, status: Status = "completed") -> Event:
    content = [] if text is None else [{"type": "reasoning_text", "text": text}]
    return {
        "id": f"rs_{about.number}_{i}",
        "type": "reasoning",
        "summary": [],
        "content": content,
        "status": status,
    }


def call_item(about: About, i: int, call: Call, status: Status = "completed") -> Event:
    return {
        "id": f"fc_{about.number}_{i}",
        "type": "function_call",
        "call_id": call_id(about.number, 0, i),
        "name": call.name,
        "arguments": call.arguments,
        "status": status,
    }
