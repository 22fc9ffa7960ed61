"""What an LLM allows of media, and the words for their kinds."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from quire.errors import InvalidPrompt

# What one of a kind is called, and several.
WORDS = {
    "image": ("image", "images"),
    "audio": ("sound", "sounds"),
    "video": ("video", "videos"),
}
KINDS = tuple(WORDS)
UNLIMITED = 999
MOST_FETCHED = 256 << 20  # bytes, for one prompt
FETCH_SECONDS = 60.0  # for one prompt


@dataclass(frozen=True, slots=True)
class MediaOptions:
    """`most` of each kind in one prompt; files are read from `folder`, and media fetched from
    `hosts`; `embeddings`: images may come as rows that their tower would make."""

    most: Mapping[str, int] = field(default_factory=dict)
    folder: str | None = None
    hosts: tuple[str, ...] = ()
    embeddings: bool = False


@dataclass(slots=True)
class Fetching:
    """The limits for fetches of one prompt: only from `hosts`, with so many bytes and seconds. A
    host is a name, or name:port if the port is not the scheme's default."""

    hosts: tuple[str, ...] = ()
    bytes_left: int = MOST_FETCHED
    deadline: float = field(default_factory=lambda: time.monotonic() + FETCH_SECONDS)


def bad_medium(kind: str, why: str) -> InvalidPrompt:
    """The error of one item."""
    return InvalidPrompt(f"the {WORDS[kind][0]} {why}", parameter="multi_modal_data")
