"""Media among the parts of a chat. They are taken out before the messages become plain data, and
their places are marked.

A template that loops over parts gets {"type": "image"} (or "audio", "video") and writes the model's
placeholder itself. For a template that takes text only, a mark that no message contains is put into
the text. After rendering, each mark is replaced by the placeholder. A placeholder that a user wrote
into a message stays ordinary text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quire.errors import InvalidPrompt, NotSupported
from quire.inputs.media.allowed import KINDS, WORDS
from quire.inputs.media.urls import MediaUrl
from quire.inputs.parse import GivenMedia
from quire.inputs.quoting import ChatText

_MARK = re.compile("\ue0c3([a-z]+)\ue0c4")
# The types that a part of each kind may have, and the keys under which it may hold its medium.
_NAMES = {
    "image": ("image_url", "input_image", "image", "image_pil"),
    "audio": ("audio_url", "input_audio", "audio"),
    "video": ("video_url", "video"),
}
_KEYS = {
    "image": ("image_url", "image", "image_pil", "url", "path", "base64", "data"),
    "audio": ("input_audio", "audio_url", "audio", "url", "path", "base64", "data"),
    "video": ("video_url", "video", "url", "path", "base64", "data"),
}
_KIND_OF = {name: kind for kind, names in _NAMES.items() for name in names}
_OTHERS = ("audio", "video", "file", "input_file", "input_video", "image_embeds")


class Mark(str):
    """A string that marks the place of a medium in the text of a message."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class TakenMedium:
    kind: str
    value: Any
    uuid: str | None


@dataclass(frozen=True, slots=True)
class TakenMedia:
    """A conversation without its media, and the media in their order."""

    messages: Sequence[Any]
    media: tuple[TakenMedium, ...] = ()

    def joined(self, chat: ChatText, in_text: Mapping[str, str]) -> ChatText:
        """The rendered text with placeholders in place of marks, together with the media."""
        if not self.media:
            return chat
        pieces, literal, at, moved = [], set(), 0, 0
        seen = dict.fromkeys(KINDS, 0)
        for mark in _MARK.finditer(chat.text):
            kind = mark[1]
            if kind not in in_text:
                continue
            seen[kind] += 1
            written = in_text[kind].replace("{n}", str(seen[kind]))
            literal |= {place + moved for place in chat.literal if at <= place < mark.start()}
            pieces += [chat.text[at : mark.start()], written]
            at, moved = mark.end(), moved + len(written) - len(mark[0])
        literal |= {place + moved for place in chat.literal if at <= place}
        data: dict[str, list[Any]] = {}
        uuids: dict[str, list[str | None]] = {}
        for one in self.media:
            data.setdefault(one.kind, []).append(one.value)
            uuids.setdefault(one.kind, []).append(one.uuid)
        text = "".join([*pieces, chat.text[at:]])
        return ChatText(text, frozenset(literal), GivenMedia(data, uuids))


def take_media(messages: Any, in_text: Mapping[str, str]) -> TakenMedia:
    """Take the media of the kinds in `in_text` out of a conversation. If `in_text` is empty, the
    model reads text alone: messages stay as they are, and media in them are refused later."""
    if not in_text or isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        return TakenMedia(messages)
    media: list[TakenMedium] = []
    kept: list[Any] = []
    for index, message in enumerate(map(_opened, messages)):
        content = message.get("content") if isinstance(message, Mapping) else None
        given = [*map(_opened, content)] if isinstance(content, list | tuple) else []
        if not any(map(_is_medium, given)):
            kept.append(message)
            continue
        parts = []
        for number, part in enumerate(given):
            if _is_medium(part):
                media.append(_medium(part, f"messages[{index}].content[{number}]", in_text))
                part = {"type": media[-1].kind}
            parts.append(part)
        kept.append({**message, "content": parts})
    return TakenMedia(kept if media else messages, tuple(media))


def mark_of(part: Any) -> Mark | None:
    """The mark for a part that stands for a medium, or None for any other part."""
    if isinstance(part, Mapping) and len(part) == 1 and part.get("type") in KINDS:
        return Mark(f"\ue0c3{part['type']}\ue0c4")
    return None


def as_text(parts: Sequence[str], *, interleaved: bool) -> str:
    """The parts of a message as one text. Marks come first, as vLLM puts them, or with
    `interleaved` stay where the media stood."""
    if interleaved:
        return "\n".join(parts)
    return "\n".join(sorted(parts, key=lambda part: not isinstance(part, Mark)))


def _opened(value: Any) -> Any:
    """A message or a part as a mapping; the OpenAI client may pass a pydantic model."""
    return value.model_dump() if callable(getattr(value, "model_dump", None)) else value


def _is_medium(part: Any) -> bool:
    if not isinstance(part, Mapping):
        return False
    kind = part.get("type")
    if isinstance(kind, str):
        return kind in _KIND_OF or any(kind.startswith(other) for other in _OTHERS)
    return any(name in part for name in _KIND_OF)


def _medium(part: Mapping[str, Any], where: str, taken: Mapping[str, str]) -> TakenMedium:
    """The medium of a part, which is a URL or the medium itself."""
    name = part.get("type") or next(name for name in _KIND_OF if name in part)
    kind = _KIND_OF.get(name)
    if kind not in taken or kind is None:
        read = " and ".join(WORDS[each][1] for each in taken)
        pages = " Show the pages of a document as images." if "file" in name else ""
        raise NotSupported(
            f"{where} is a part of type {name!r}: this model reads {read} alone.{pages}"
        )
    for key in (key for key in _KEYS[kind] if part.get(key) is not None):
        value = _value(part[key], key, kind)
        if value is not None:
            return TakenMedium(kind, value, part.get("uuid"))
    shown = f"{kind}_url"
    raise InvalidPrompt(
        f'{where} has no {WORDS[kind][0]}; it looks like {{"type": "{shown}", "{shown}": '
        '{"url": ...}}',
        parameter="messages",
    )


def _value(value: Any, key: str, kind: str) -> Any:
    if key == "input_audio" and isinstance(value, Mapping):  # {"data", "format"}: base64
        key, value = "base64", value.get("data")
    elif isinstance(value, Mapping) and "url" in value:
        value = value["url"]
    elif isinstance(value, Mapping) and kind == "image":
        value = None
    if key == "base64" and isinstance(value, str):
        value = f"data:{kind};base64,{value}"
    return MediaUrl(value) if isinstance(value, str) else value
