"""Which media an LLM allows, and the words that errors use for each kind."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from quire.errors import InvalidPrompt

# The words for one item of a kind and for several.
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
    """`most`: how many items of each kind one prompt may have. Files are read from `folder`, and
    media are fetched from `hosts`. With `embeddings`, an image may be given as the rows that its
    encoder would make."""

    most: Mapping[str, int] = field(default_factory=dict)
    folder: str | None = None
    hosts: tuple[str, ...] = ()
    embeddings: bool = False


@dataclass(slots=True)
class Fetching:
    """The limits for the fetches of one prompt: the allowed hosts (name, or name:port if the port
    is not the scheme's default), the bytes that are left, and a deadline of time.monotonic."""

    hosts: tuple[str, ...] = ()
    bytes_left: int = MOST_FETCHED
    deadline: float = field(default_factory=lambda: time.monotonic() + FETCH_SECONDS)


def bad_medium(kind: str, why: str) -> InvalidPrompt:
    """The error of one item."""
    return InvalidPrompt(f"the {WORDS[kind][0]} {why}", parameter="multi_modal_data")
