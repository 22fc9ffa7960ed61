"""Collects prompts that come one by one into windows: as many as are planned together, or fewer, so
that their pixels and samples take limited memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from numbers import Number
from typing import Any

MOST_HELD = 128 << 20  # bytes of media in a window
_PIXEL = 4  # bytes that Pillow uses for a pixel
_FETCHED = 4 << 20  # an estimate of what is fetched: the bytes of a large photograph


def windows(prompts: Iterable[Any], most: int) -> Iterator[list[Any]]:
    """Windows of at most `most` prompts, which also end once their media reach MOST_HELD bytes."""
    some, held = list[Any](), 0
    for prompt in prompts:
        some.append(prompt)
        held += held_bytes(prompt)
        if len(some) == most or held >= MOST_HELD:
            yield some
            some, held = [], 0
    if some:
        yield some


def held_bytes(prompt: Any) -> int:
    """Roughly how many bytes the media of an unchecked prompt or conversation take."""
    if isinstance(prompt, list | tuple):
        is_tokens = bool(prompt) and isinstance(prompt[0], Number)
        return 0 if is_tokens else sum(map(_of_message, prompt))
    if not isinstance(prompt, Mapping):
        return 0
    return _bytes_of(prompt.get("multi_modal_data")) + held_bytes(prompt.get("encoder_prompt"))


def _of_message(message: Any) -> int:
    content = message.get("content") if isinstance(message, Mapping) else None
    parts = content if isinstance(content, list | tuple) else ()
    media = [part for part in parts if isinstance(part, Mapping) and part.get("type") != "text"]
    return sum(_bytes_of(value) for part in media for value in part.values())


def _bytes_of(given: Any) -> int:
    if isinstance(given, bytes | bytearray | memoryview):
        return len(given)
    if isinstance(given, str):  # a URL, or base64
        return _FETCHED if given.lstrip()[:4].lower() == "http" else len(given)
    if isinstance(given, Mapping):
        return sum(map(_bytes_of, given.values()))
    if isinstance(given, list | tuple):
        if given and isinstance(given[0], Number):  # samples
            return 8 * len(given)
        return sum(map(_bytes_of, given))
    known = getattr(given, "nbytes", None)  # arrays and tensors
    size = getattr(given, "size", None)  # pictures
    if isinstance(known, int):
        return known
    if isinstance(size, tuple) and len(size) == 2:
        return _PIXEL * int(size[0] * size[1])
    return 0
