"""Prompts grown by their media: what stands for an item is put where its placeholder stood.

In text that happens before it is encoded, since what stands for an item may hold ordinary text that
merges with its neighbours; each run of rows is one pad token there, and is repeated afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quire.errors import InvalidPrompt
from quire.families.media.rules import ImageRules, Placed
from quire.inputs.quoting import ChatText
from quire.request import Ints, MediaItem, Span


@dataclass(frozen=True, slots=True)
class PlacedItem:
    """An item of a prompt, and what stands for it."""

    item: MediaItem
    placed: Placed


@dataclass(frozen=True, slots=True)
class Grown:
    """A prompt with its media: ids as they are compared, ids of the vocabulary, and the spans."""

    prompt_ids: Ints
    plain_ids: Ints
    spans: tuple[Span, ...]
    coordinates: Ints | None = None
    delta: int = 0

    @property
    def num_media(self) -> int:
        return sum(span.item.count for span in self.spans)


def grow_text(chat: ChatText, rules: ImageRules, items: Sequence[PlacedItem]) -> ChatText:
    """The text with what stands for each item; one pad for a run of rows."""
    found = _places_of(rules.placeholder, chat)
    if len(found) != len(items):
        raise _mismatch(rules, len(found), len(items))
    pieces, literal, at, shift = [], set(), 0, 0
    for start, one in zip(found, items, strict=True):
        literal |= {place + shift for place in chat.literal if at <= place < start}
        pieces += [chat.text[at:start], one.placed.text]
        at = start + len(rules.placeholder)
        shift += len(one.placed.text) - len(rules.placeholder)
    literal |= {place + shift for place in chat.literal if at <= place}
    return ChatText("".join([*pieces, chat.text[at:]]), frozenset(literal))


def grow_ids(
    ids: Ints,
    rules: ImageRules,
    items: Sequence[PlacedItem],
    token_id: Callable[[str], int | None],
    encode: Callable[[str], Ints],
) -> Grown:
    """Ids with one pad for a run of rows, with one placeholder for an item, or with all pads."""
    pad, holder = token_id(rules.pad), token_id(rules.placeholder)
    if pad is None:
        raise InvalidPrompt(f"the tokenizer has no token {rules.pad!r}", parameter="prompt")
    runs = [run for one in items for run in one.placed.runs]
    num_pads = int((ids == pad).sum())
    total = sum(runs)
    if num_pads == total:
        return _spans(ids, pad, rules, items)
    if num_pads != len(runs):
        num_holders = int((ids == holder).sum()) if holder is not None else 0
        if num_holders != len(items):
            raise _mismatch(rules, num_holders, len(items))
        ids = _with_texts(ids, int(holder or 0), [encode(one.placed.text) for one in items])
    times = np.ones(len(ids), np.int64)
    times[ids == pad] = runs
    return _spans(np.repeat(ids, times), pad, rules, items)


def _with_texts(ids: Ints, holder: int, texts: Sequence[Ints]) -> Ints:
    """[1 H 2], H, [[5 6]] -> [1 5 6 2]"""
    pieces: list[Any] = []
    for piece, text in zip(
        np.split(ids, np.flatnonzero(ids == holder)), [None, *texts], strict=True
    ):
        pieces += [piece] if text is None else [text, piece[1:]]
    return np.concatenate(pieces).astype(np.int32)


def _spans(ids: Ints, pad: int, rules: ImageRules, items: Sequence[PlacedItem]) -> Grown:
    places = np.flatnonzero(ids == pad).astype(np.int32)
    compared, spans, first = ids.copy(), [], 0
    for one in items:
        mine = places[first : first + one.item.count]
        compared[mine] = -one.item.serial
        spans.append(Span(one.item, mine, rules.two_way))
        first += one.item.count
    return Grown(compared, ids, tuple(spans))


def _places_of(placeholder: str, chat: ChatText) -> list[int]:
    """Where it begins, those left out that a message only quotes."""
    found, at = [], chat.text.find(placeholder)
    while at >= 0:
        if at not in chat.literal:
            found.append(at)
        at = chat.text.find(placeholder, at + len(placeholder))
    return found


def _mismatch(rules: ImageRules, placeholders: int, images: int) -> InvalidPrompt:
    return InvalidPrompt(
        f"the prompt has {images} images and {placeholders} places for them; write "
        f"{rules.placeholder!r} once for each image, where it belongs",
        parameter="prompt",
        value=placeholders,
    )
