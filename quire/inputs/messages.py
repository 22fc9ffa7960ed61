"""Messages of a chat: checked, and copied into plain data that a template may see.

Content becomes what the template expects: one string, or a list of text parts.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from quire.errors import InvalidPrompt, NotSupported
from quire.inputs.media.chat_parts import Mark, as_text, mark_of

if TYPE_CHECKING:
    from quire.inputs.template import ChatTemplate

_TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
_MEDIA = ("image", "audio", "video", "file")
_REASONING = ("reasoning_content", "thinking", "reasoning")


def _wrong(why: str, value: Any = None) -> InvalidPrompt:
    return InvalidPrompt(why, parameter="messages", value=value)


def plain(value: Any, where: str) -> Any:
    """A copy of JSON types only: a template cannot change the original, nor reach other objects."""
    if value is None or type(value) in (bool, str, int, float):
        return value
    if isinstance(value, str):  # an enum, say: what the template gets has no methods of its own
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if callable(getattr(value, "model_dump", None)):  # pydantic, as OpenAI's client returns
        return plain(value.model_dump(), where)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {f.name: plain(getattr(value, f.name), f"{where}.{f.name}") for f in fields}
    raise _wrong(
        f"{where} is a {type(value).__name__}; messages hold text, numbers, lists and dicts"
    )


def checked_messages(
    messages: Sequence[Any],
    template: ChatTemplate,
    content_format: str,
    *,
    marked: bool,
    interleaved: bool,
) -> list[dict[str, Any]]:
    """`marked`: media were taken out, and parts such as {"type": "image"} stand for them;
    `interleaved`: these stand where they stood among texts that become one."""
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        raise _wrong(
            f"a conversation is a list of messages, not a {type(messages).__name__}; write "
            '[{"role": "user", "content": "..."}]'
        )
    if not messages:
        raise _wrong("the conversation is empty; give it at least one message")
    if content_format == "auto":
        in_parts, wrap = template.takes_parts, not template.takes_text
    else:
        in_parts = wrap = content_format == "openai"
    older = "function_call" in template.source
    shape = _Shape(in_parts, wrap, template.takes_none, marked, interleaved, older)
    return [_message(m, index, shape) for index, m in enumerate(messages)]


@dataclasses.dataclass(frozen=True, slots=True)
class _Shape:
    """What the template walks through: parts or one text; whether a text becomes a part, and
    nothing stays None; whether parts may stand for media, and where those stand in one text."""

    in_parts: bool
    wrap: bool
    none: bool
    marked: bool
    interleaved: bool
    older: bool  # the template reads function_call itself


def _message(given: Any, index: int, shape: _Shape) -> dict[str, Any]:
    where = f"messages[{index}]"
    try:
        message = plain(given, where) if not isinstance(given, str) else given
    except RecursionError:
        raise _wrong(f"{where} is nested too deeply") from None
    if not isinstance(message, dict):
        raise _wrong(
            f'{where} is a {type(given).__name__}; a message is a dict with "role" and "content"'
        )
    if not isinstance(message.get("role"), str):
        raise _wrong(
            f'{where} has no "role"; say who speaks: "system", "user", "assistant" or "tool"',
            message.get("role"),
        )
    if not shape.older:
        _modernise(message)
    if "content" not in message and not message.get("tool_calls"):
        raise _wrong(f'{where} has neither "content" nor "tool_calls"')
    message["content"] = _content(message.get("content"), where, shape)
    _read_arguments(message, where)
    for name in _REASONING:
        if message.get(name) is not None:
            return {"thinking": message[name], **message, "reasoning_content": message[name]}
    return message


def _modernise(message: dict[str, Any]) -> None:
    """What older clients write for a call and its answer, and a refusal, as templates read them."""
    call, refusal = message.pop("function_call", None), message.pop("refusal", None)
    if call is not None and not message.get("tool_calls"):
        message["tool_calls"] = [{"type": "function", "function": call}]
    if message["role"] == "function":
        message["role"] = "tool"
    if refusal is not None and not message.get("content"):
        message["content"] = refusal


def _content(content: Any, where: str, shape: _Shape) -> Any:
    if content is None:
        # A template that never asks would write the word None, or fail at it.
        return None if shape.none else [] if shape.wrap else ""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if shape.wrap else content
    if not isinstance(content, list):
        raise _wrong(
            f"{where}.content is a {type(content).__name__}; it should be text or a list of parts",
            content,
        )
    texts = [
        (mark_of(part) if shape.marked else None) or _part_text(part, f"{where}.content[{i}]")
        for i, part in enumerate(content)
    ]
    if shape.in_parts:
        return [
            dict(part) if isinstance(text, Mark) else {"type": "text", "text": text}
            for part, text in zip(content, texts, strict=True)
        ]
    return as_text(texts, interleaved=shape.interleaved)


def _part_text(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise _wrong(f"{where} is a {type(part).__name__}, not a dict")
    kind = part.get("type", "text" if "text" in part else None)
    if any(medium in f"{kind} {' '.join(part)}" for medium in _MEDIA):
        raise NotSupported(
            f"{where} is a part of type {kind!r}, and this model reads text alone: describe it "
            "in words"
        )
    text = part.get(_TEXT_PARTS.get(str(kind), ""))
    if not isinstance(text, str):
        raise _wrong(
            f"{where} has no text that quire can read (type {kind!r}); a part looks like "
            '{"type": "text", "text": "..."}'
        )
    return text


def _read_arguments(message: dict[str, Any], where: str) -> None:
    """Arguments of tool calls as objects: clients pass JSON text, templates write JSON of it."""
    calls = message.get("tool_calls")
    for index, call in enumerate(calls if isinstance(calls, list) else []):
        function = call.get("function", call) if isinstance(call, dict) else {}
        arguments = function.get("arguments") if isinstance(function, dict) else None
        if isinstance(arguments, str):
            try:
                function["arguments"] = json.loads(arguments) if arguments.strip() else {}
            except (json.JSONDecodeError, RecursionError) as error:
                raise _wrong(
                    f"{where}.tool_calls[{index}] has arguments that are not JSON: {error}",
                    arguments,
                ) from None
