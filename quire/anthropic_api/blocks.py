"""Makes the messages of a chat from messages made of blocks.

In a chat the results of tools are separate messages. Consecutive turns of one speaker are joined,
since many templates refuse them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from quire.openai_api.errors import ApiError, bad, not_supported
from quire.params.rules import show

_ROLES = {
    "user": ("text", "image", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
    "system": ("text",),
}
_IN_RESULTS = ("text", "image")
_IMAGE_TYPE = re.compile("image/[a-z0-9.+-]{1,40}")
# Claude Code begins its system prompt with a line about billing that changes with every request, so
# no cached prefix could be used.
_ACCOUNTS = "x-anthropic-billing-header"
_ERROR = "Error:"  # put before a result with `is_error`: templates have no field for that
Block = Mapping[str, Any]
Part = dict[str, Any]


def chat_messages(system: Any, messages: list[Any]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The conversation of a body as messages of a chat, and the place of each image in the body;
    raises ApiError."""
    chat = _Chat()
    if system is not None:
        chat.add("system", system, "system")
    for i, message in enumerate(messages):
        where = f"messages[{i}]"
        if not isinstance(message, Mapping):
            raise _wrong(f"{where} is an object, not {show(message)}")
        role = message.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise _wrong(
                f"{where}.role is {', '.join(_ROLES)}, not {show(role)}; a tool's result is a "
                "block of the user"
            )
        chat.add(role, message.get("content"), f"{where}.content")
    return chat.messages(), chat.places


def _field(where: str) -> str:
    """The name of the body's field in which a place is."""
    return re.split(r"[.\[]", where, maxsplit=1)[0]


def _wrong(why: str, where: str = "messages") -> ApiError:
    return bad(why, param=_field(where))


class _Chat:
    """A conversation that grows by blocks."""

    def __init__(self) -> None:
        self._turns: list[dict[str, Any]] = []
        self._called: dict[str, str] = {}  # the function of each tool_use, by its id
        self.places: dict[str, str] = {}  # places of images, for errors that are found later
        self._adding = {
            "text": self._add_text,
            "image": self._add_image,
            "thinking": self._add_thinking,
            "redacted_thinking": self._add_nothing,
            "tool_use": self._add_call,
            "tool_result": self._add_result,
        }

    def add(self, role: str, content: Any, where: str) -> None:
        blocks = _blocks(content, where, _ROLES[role])
        if not blocks:
            self._turn(role)
        for block, place in blocks:
            self._adding[block["type"]](role, block, place)

    def messages(self) -> list[dict[str, Any]]:
        return [_message(turn) for turn in self._turns]

    def _turn(self, role: str) -> dict[str, Any]:
        """The turn that blocks of this role go to: the last one, or a new one."""
        if not self._turns or self._turns[-1]["role"] != role:
            self._turns.append({"role": role, "content": []})
        return self._turns[-1]

    def _add_text(self, role: str, block: Block, where: str) -> None:
        part = _text_part(block, where)
        if role != "system" or not part["text"].startswith(_ACCOUNTS):
            self._turn(role)["content"].append(part)

    def _add_image(self, role: str, block: Block, where: str) -> None:
        parts = self._turn(role)["content"]
        self._place(len(self._turns) - 1, len(parts), where)
        parts.append(_image_part(block, where))

    def _place(self, turn: int, part: int, where: str) -> None:
        self.places[f"messages[{turn}].content[{part}]"] = where

    def _add_thinking(self, role: str, block: Block, where: str) -> None:
        turn = self._turn(role)
        thought = _text_of(block, "thinking", where)
        turn["reasoning_content"] = turn.get("reasoning_content", "") + thought

    def _add_nothing(self, role: str, block: Block, where: str) -> None:
        """Skip a redacted block: only the server that wrote it can read it."""
        self._turn(role)

    def _add_call(self, role: str, block: Block, where: str) -> None:
        id, name = _text_of(block, "id", where), _text_of(block, "name", where)
        if not isinstance(block.get("input"), Mapping):
            raise _wrong(f"{where}.input is an object, not {show(block.get('input'))}")
        function = {"name": name, "arguments": block["input"]}
        call = {"id": id, "type": "function", "function": function}
        self._turn(role).setdefault("tool_calls", []).append(call)
        self._called[id] = name

    def _add_result(self, role: str, block: Block, where: str) -> None:
        id, content, failed = (block.get(name) for name in ("tool_use_id", "content", "is_error"))
        if not isinstance(id, str) or id not in self._called:
            raise _wrong(f"{where}.tool_use_id is {show(id)}, which no tool_use before it has")
        if failed is not None and not isinstance(failed, bool):
            raise _wrong(f"{where}.is_error is true or false, not {show(failed)}")
        parts: list[Part] = [{"type": "text", "text": _ERROR}] if failed else []
        inner = [] if content is None else _blocks(content, f"{where}.content", _IN_RESULTS)
        for one, place in inner:
            if one["type"] == "image":
                self._place(len(self._turns), len(parts), place)
            parts.append((_text_part if one["type"] == "text" else _image_part)(one, place))
        self._turns.append(
            {"role": "tool", "tool_call_id": id, "name": self._called[id], "content": parts}
        )


def _blocks(content: Any, where: str, known: tuple[str, ...]) -> list[tuple[Block, str]]:
    """The blocks of a content, each with its place in the body; a plain text is one block."""
    if isinstance(content, str):
        return [({"type": "text", "text": content}, where)] if content else []
    if not isinstance(content, list):
        raise _wrong(f"{where} is text or a list of blocks, not {show(content)}", where)
    found: list[tuple[Block, str]] = []
    for i, block in enumerate(content):
        place = f"{where}[{i}]"
        kind = block.get("type") if isinstance(block, Mapping) else None
        if not isinstance(kind, str):
            raise _wrong(f"{place} is an object with a type, not {show(block)}", where)
        if kind not in known:
            raise not_supported(
                f"{place} is of type {show(kind)}, and here {' and '.join(known)} alone are read; "
                "write it as text, or leave it out",
                param=_field(where),
            )
        found.append((block, place))
    return found


def _text_of(block: Block, name: str, where: str) -> str:
    text = block.get(name)
    if not isinstance(text, str):
        raise _wrong(f"{where}.{name} is text, not {show(text)}", where)
    return text


def _text_part(block: Block, where: str) -> Part:
    return {"type": "text", "text": _text_of(block, "text", where)}


def _image_part(block: Block, where: str) -> Part:
    """An image as a part of a chat; whether its URL is allowed is checked when it is fetched."""
    source = block.get("source")
    kind = source.get("type") if isinstance(source, Mapping) else None
    if not isinstance(source, Mapping) or kind not in ("base64", "url"):
        raise not_supported(
            f"{where}.source is base64 or url, not {show(kind)}; no other is built",
            param=_field(where),
        )
    if kind == "url":
        url = _text_of(source, "url", f"{where}.source")
    else:
        data = _text_of(source, "data", f"{where}.source")
        media_type = _text_of(source, "media_type", f"{where}.source")
        if not _IMAGE_TYPE.fullmatch(media_type):
            raise _wrong(f"{where}.source.media_type is like image/png, not {show(media_type)}")
        url = f"data:{media_type};base64,{data}"
    return {"type": "image_url", "image_url": {"url": url}}


def _message(turn: Mapping[str, Any]) -> dict[str, Any]:
    """A turn in its simplest form: all texts of an assistant are joined to one string; in other
    turns a single text becomes a string."""
    parts = turn["content"]
    content: Any = parts
    if turn["role"] == "assistant":
        content = "".join(part["text"] for part in parts) or (None if "tool_calls" in turn else "")
    elif not parts:
        content = ""
    elif len(parts) == 1 and parts[0]["type"] == "text":
        content = parts[0]["text"]
    return {**turn, "content": content}
