"""Media among the parts of a chat: taken out before the messages become plain data, and marked
where they stood.

A template that walks through parts sees {"type": "image"} and writes the model's placeholder
itself. For one that takes text alone a mark stands in the text, which no message holds; what is
written there becomes the placeholder once the template is done, so that a placeholder which a
message only quotes stays text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quire.errors import InvalidPrompt, NotSupported
from quire.inputs.media.urls import MediaUrl
from quire.inputs.parse import GivenMedia
from quire.inputs.quoting import ChatText

MARK = "\ue0c3image\ue0c4"
IMAGE_PART = {"type": "image"}
_NAMES = ("image_url", "input_image", "image", "image_pil")
_OTHERS = ("audio", "video", "file", "image_embeds")


@dataclass(frozen=True, slots=True)
class TakenMedia:
    """A conversation without its media, and these in their order."""

    messages: Sequence[Any]
    images: tuple[Any, ...] = ()
    uuids: tuple[str | None, ...] = ()

    def joined(self, chat: ChatText, in_text: str) -> ChatText:
        """What was rendered, with placeholders for marks, and the media beside it."""
        if not self.images:
            return chat
        pieces = chat.text.split(MARK)
        literal, at, moved = set(), 0, 0
        for piece in pieces:
            end = at + len(piece)
            literal |= {place + moved for place in chat.literal if at <= place < end}
            at, moved = end + len(MARK), moved + len(in_text) - len(MARK)
        media = GivenMedia({"image": list(self.images)}, list(self.uuids))
        return ChatText(in_text.join(pieces), frozenset(literal), media)


def take_media(messages: Any, in_text: str | None) -> TakenMedia:
    """The images of a conversation; `in_text` None: the model sees nothing, and messages stay as
    they are, to be refused where they hold media."""
    if in_text is None or isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        return TakenMedia(messages)
    images: list[Any] = []
    uuids: list[str | None] = []
    kept: list[Any] = []
    for index, message in enumerate(messages):
        content = message.get("content") if isinstance(message, Mapping) else None
        if not isinstance(content, list | tuple) or not any(map(_is_medium, content)):
            kept.append(message)
            continue
        parts = []
        for number, part in enumerate(content):
            if _is_medium(part):
                images.append(_image(part, f"messages[{index}].content[{number}]"))
                uuids.append(part.get("uuid"))
                part = dict(IMAGE_PART)
            parts.append(part)
        kept.append({**message, "content": parts})
    return TakenMedia(kept if images else messages, tuple(images), tuple(uuids))


def as_text(parts: Sequence[str | None], *, interleaved: bool) -> str:
    """The parts of a message as one text, None for an image: marks first, as scripts for vLLM
    expect, or where the images stood."""
    if interleaved:
        return "\n".join(MARK if part is None else part for part in parts)
    marks = [MARK for part in parts if part is None]
    return "\n".join([*marks, *(part for part in parts if part is not None)])


def _is_medium(part: Any) -> bool:
    if not isinstance(part, Mapping):
        return False
    kind = part.get("type")
    if isinstance(kind, str):
        return kind in _NAMES or any(kind.startswith(other) for other in _OTHERS)
    return any(name in part for name in _NAMES)


def _image(part: Mapping[str, Any], where: str) -> Any:
    """What a part holds: a URL, or an image itself."""
    kind = part.get("type") or next(name for name in _NAMES if name in part)
    if kind not in _NAMES:
        raise NotSupported(f"{where} is a part of type {kind!r}: this model reads images alone.")
    keys = ("image_url", "image", "image_pil", "url", "path", "base64", "data")
    for key in (key for key in keys if part.get(key) is not None):
        value = part[key]
        if isinstance(value, Mapping):
            value = value.get("url")
        if value is None:
            continue
        if key == "base64":
            value = f"data:image;base64,{value}"
        return MediaUrl(value) if isinstance(value, str) else value
    raise InvalidPrompt(
        f'{where} has no image; it looks like {{"type": "image_url", "image_url": {{"url": ...}}}}',
        parameter="messages",
    )
