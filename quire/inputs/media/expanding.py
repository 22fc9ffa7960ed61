"""Expands prompts with media: each placeholder is replaced by the tokens that stand for its item.

For a prompt of text, this is done before the text is encoded, because an item's tokens may include
ordinary text that merges with its neighbours. A run of rows is written as one pad token in the
text, and the pad token is repeated after encoding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quire.errors import InvalidPrompt
from quire.families.media.rules import MediaRules, Placed
from quire.inputs.media.allowed import WORDS
from quire.inputs.quoting import ChatText
from quire.request import Ints, MediaItem, Span


@dataclass(frozen=True, slots=True)
class PlacedItem:
    """An item of a prompt, and the tokens that stand for it."""

    item: MediaItem
    placed: Placed


Rules = Mapping[str, MediaRules]  # by kind of media


@dataclass(frozen=True, slots=True)
class Grown:
    """A prompt with its media. `prompt_ids` are compared for prefixes and name media by negative
    serials; `plain_ids` are of the vocabulary. The decoder attends to `heard` beside the prompt."""

    prompt_ids: Ints
    plain_ids: Ints
    spans: tuple[Span, ...]
    coordinates: Ints | None = None
    delta: int = 0
    heard: MediaItem | None = None

    @property
    def num_media(self) -> int:
        return sum(span.item.count for span in self.spans)

    @property
    def most_at_once(self) -> int:
        """The largest number of tokens that attend to each other, and so are in one pass."""
        runs = [span.runs for span in self.spans if span.two_way]
        return max((int((run[:, 1] - run[:, 0]).max()) for run in runs), default=0)


def heard_by(ids: Ints, item: MediaItem) -> Grown:
    """A prompt whose tokens attend to an item beside it, which the first compared id names."""
    compared = ids.copy()
    compared[0] = -item.serial
    return Grown(compared, ids, (), heard=item)


def grow_text(chat: ChatText, rules: Rules, items: Sequence[PlacedItem]) -> ChatText:
    """The text with placeholders replaced by the text of items, with one pad per run of rows."""
    found: list[tuple[int, str, PlacedItem]] = []
    for kind, mine in _by_kind(rules, items):
        holder = rules[kind].placeholder
        places = _places_of(holder, chat)
        if len(places) != len(mine):
            raise _mismatch(kind, holder, len(places), len(mine))
        found += [(at, holder, one) for at, one in zip(places, mine, strict=True)]
    found.sort(key=lambda each: each[0])
    pieces, literal, at, shift = [], set(), 0, 0
    for start, holder, one in found:
        literal |= {place + shift for place in chat.literal if at <= place < start}
        pieces += [chat.text[at:start], one.placed.text]
        at = start + len(holder)
        shift += len(one.placed.text) - len(holder)
    literal |= {place + shift for place in chat.literal if at <= place}
    return ChatText("".join([*pieces, chat.text[at:]]), frozenset(literal))


def check_no_places(
    given: ChatText | Ints, rules: Rules, token_id: Callable[[str], int | None]
) -> None:
    """Raise InvalidPrompt if a prompt without media has a placeholder, whose embedding never
    belongs in text. A placeholder that is not a token counts as text."""
    for kind, mine in rules.items():
        for sign in {mine.placeholder, mine.pad}:
            if isinstance(given, ChatText):
                if sign not in given.text or token_id(sign) is None:
                    continue
                count = len(_places_of(sign, given))
            else:
                count = int((given == token_id(sign)).sum()) if token_id(sign) is not None else 0
            if count:
                raise _mismatch(kind, sign, count, 0)


def grow_ids(
    ids: Ints,
    rules: Rules,
    items: Sequence[PlacedItem],
    token_id: Callable[[str], int | None],
    encode: Callable[[str], Ints] | None,
) -> Grown:
    """Repeat pads and find spans. Without `encode`, `ids` are those of a text from `grow_text`,
    with one pad per run of rows. With it (text -> ids), the caller passed them, with one
    placeholder per item or all pads."""
    pads: dict[str, int] = {}
    for kind, mine in _by_kind(rules, items):
        holder, pad = rules[kind].placeholder, token_id(rules[kind].pad)
        if not mine:
            check_no_places(ids, {kind: rules[kind]}, token_id)
            continue
        if pad is None:
            raise InvalidPrompt(
                f"the tokenizer has no token {rules[kind].pad!r}", parameter="prompt"
            )
        pads[kind] = pad
        runs = [run for one in mine for run in one.placed.runs]
        places = (ids == pad).nonzero()[0]
        if encode is not None:
            if len(places) == sum(runs) and len(places) > len(mine):
                continue  # the caller passed all pads
            num_holders = int((ids == token_id(holder)).sum())
            if num_holders != len(mine):
                raise _mismatch(kind, holder, num_holders, len(mine))
            texts = [one.placed.text for one in mine]
            ids = _with_texts(ids, int(token_id(holder) or 0), texts, encode)
            places = (ids == pad).nonzero()[0]
        if len(places) != len(runs):  # the text of a message contains pads too
            raise _mismatch(kind, holder, len(places) - len(runs) + len(mine), len(mine))
        times = np.ones(len(ids), np.int64)
        times[places] = runs
        ids = ids.repeat(times)
    return _spans(ids, pads, rules, items)


def _by_kind(rules: Rules, items: Sequence[PlacedItem]) -> Iterator[tuple[str, list[PlacedItem]]]:
    """The items of each kind that the model takes, in order; a kind may have none."""
    for kind in rules:
        yield kind, [one for one in items if one.item.kind == kind]


def _with_texts(
    ids: Ints, holder: int, texts: Sequence[str], encode: Callable[[str], Ints]
) -> Ints:
    """[1 H 2], H, ["a b"] -> [1 5 6 2]. Line breaks that meet are encoded together, as they are
    when text is expanded before it is encoded."""
    breaks = {int(line[0]): n for n in range(1, 9) if len(line := encode("\n" * n)) == 1}
    made: list[int] = []
    pieces: Any = np.split(ids, np.flatnonzero(ids == holder))
    for piece, text in zip(pieces, [None, *texts], strict=True):
        if text is None:
            made += piece.tolist()
            continue
        for part in (encode(text).tolist(), piece[1:].tolist()):
            made = _joined(made, part, breaks, encode)
    return np.array(made, np.int32)


def _joined(
    before: list[int], behind: list[int], breaks: Mapping[int, int], encode: Callable[[str], Ints]
) -> list[int]:
    first, last = len(before), 0
    while first and before[first - 1] in breaks:
        first -= 1
    while last < len(behind) and behind[last] in breaks:
        last += 1
    if first == len(before) or not last:
        return before + behind
    count = sum(breaks[token] for token in before[first:] + behind[:last])
    return [*before[:first], *encode("\n" * count).tolist(), *behind[last:]]


def _spans(ids: Ints, pads: Mapping[str, int], rules: Rules, items: Sequence[PlacedItem]) -> Grown:
    compared, spans = ids.copy(), []
    for kind, pad in pads.items():
        places, first = (ids == pad).nonzero()[0].astype(np.int32), 0
        for one in items:
            if one.item.kind == kind:
                at = places[first : first + one.item.count]
                compared[at] = -one.item.serial
                spans.append(Span(one.item, at, rules[kind].two_way))
                first += one.item.count
    spans.sort(key=lambda span: span.start)
    return Grown(compared, ids, tuple(spans))


def _places_of(placeholder: str, chat: ChatText) -> list[int]:
    """The places of the placeholder, except those that users wrote in the text of messages."""
    found, at = [], chat.text.find(placeholder)
    while at >= 0:
        if at not in chat.literal:
            found.append(at)
        at = chat.text.find(placeholder, at + len(placeholder))
    return found


def _mismatch(kind: str, placeholder: str, places: int, given: int) -> InvalidPrompt:
    one, several = WORDS[kind]
    way_out = f"write {placeholder!r} once for each {one}, where it belongs"
    if not given:
        way_out = (
            f"pass what belongs there, as multi_modal_data={{{kind!r}: ...}} or as a part of a "
            f"chat's message, or leave {placeholder!r} out"
        )
    return InvalidPrompt(
        f"the prompt has {given} {one if given == 1 else several} and {places} "
        f"{'place' if places == 1 else 'places'} for them; {way_out}",
        parameter="prompt",
        value=places,
    )
