"""Expands prompts with media: each placeholder is replaced by the tokens that stand for its item.

For a prompt of text, this is done before the text is encoded, because an item's tokens may include
ordinary text that merges with its neighbours. A run of rows is written as one pad token in the
text, and the pad token is repeated after encoding.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

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


def grow_text(
    chat: ChatText, rules: Rules, items: Sequence[PlacedItem]
) -> tuple[ChatText, tuple[PlacedItem, ...]]:
    """The text with placeholders replaced by the text of items, with one pad per run of rows; and
    the items in its order."""
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
    grown = ChatText("".join([*pieces, chat.text[at:]]), frozenset(literal))
    return grown, tuple(one for _, _, one in found)


def check_no_places(
    given: ChatText | Ints,
    rules: Rules,
    token_id: Callable[[str], int | None],
    *,
    others: Collection[str] = (),
) -> None:
    """Raise InvalidPrompt if a prompt without media has a placeholder, whose embedding never
    belongs in text. A placeholder that is not a token counts as text. `others`: pads of media that
    the prompt has."""
    for kind, mine in rules.items():
        for sign in {mine.placeholder, mine.pad} - {*others}:
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
    with one pad per run of rows, and the items are in its order. With it (text -> ids), the caller
    passed them, with one placeholder per item or all pads. Kinds may share a pad."""
    there = {kind: rules[kind] for kind, mine in _by_kind(rules, items) if mine}
    absent = {kind: known for kind, known in rules.items() if kind not in there}
    check_no_places(ids, absent, token_id, others=[known.pad for known in there.values()])
    pads: dict[str, int] = {}
    for kind, known in there.items():
        if (pad := token_id(known.pad)) is None:
            raise InvalidPrompt(f"the tokenizer has no token {known.pad!r}", parameter="prompt")
        pads[kind] = pad
    full: set[int] = set()
    if encode is not None:
        full = {pad for pad in pads.values() if _has_all_pads(ids, pad, _of_pad(items, pads, pad))}
        held = {kind: there[kind].placeholder for kind, pad in pads.items() if pad not in full}
        ids, items = _with_texts(ids, held, items, token_id, encode)
    times = np.ones(len(ids), np.int64)
    for kind, pad in pads.items():
        if pad in full:
            continue
        mine = _of_pad(items, pads, pad)
        runs, places = [run for one in mine for run in one.placed.runs], (ids == pad).nonzero()[0]
        if len(places) != len(runs):  # the text of a message contains pads too
            count = len(places) - len(runs) + len(mine)
            raise _mismatch(kind, there[kind].placeholder, count, len(mine))
        times[places] = runs
    return _spans(ids.repeat(times), pads, rules, items)


def _of_pad(items: Sequence[PlacedItem], pads: Mapping[str, int], pad: int) -> Sequence[PlacedItem]:
    return [one for one in items if pads[one.item.kind] == pad]


def _has_all_pads(ids: Ints, pad: int, mine: Sequence[PlacedItem]) -> bool:
    """Whether the caller passed all pads of these items, not one for each."""
    given = int((ids == pad).sum())
    if given != sum(one.placed.count for one in mine) or given <= len(mine):
        return False
    if len({one.item.kind for one in mine}) > 1:
        raise InvalidPrompt(
            "the prompt has all tokens of media of several kinds, which are the same tokens, so "
            "that nothing says which are whose; pass one placeholder for each, or text",
            parameter="prompt",
        )
    return True


def _by_kind(rules: Rules, items: Sequence[PlacedItem]) -> Iterator[tuple[str, list[PlacedItem]]]:
    """The items of each kind that the model takes, in order; a kind may have none."""
    for kind in rules:
        yield kind, [one for one in items if one.item.kind == kind]


def _with_texts(
    ids: Ints,
    held: Mapping[str, str],
    items: Sequence[PlacedItem],
    token_id: Callable[[str], int | None],
    encode: Callable[[str], Ints],
) -> tuple[Ints, Sequence[PlacedItem]]:
    """[1 H 2], {kind: "H"}, item of "a b" -> [1 5 6 2]; and the items in that order, then those of
    other kinds. Line breaks that meet are encoded together, as they are when text is expanded
    before it is encoded."""
    found: list[tuple[int, PlacedItem]] = []
    for kind, holder in held.items():
        mine = [one for one in items if one.item.kind == kind]
        places = (ids == token_id(holder)).nonzero()[0].tolist()
        if len(places) != len(mine):
            raise _mismatch(kind, holder, len(places), len(mine))
        found += zip(places, mine, strict=True)
    found.sort(key=lambda each: each[0])
    breaks = {int(line[0]): n for n in range(1, 9) if len(line := encode("\n" * n)) == 1}
    pieces = np.split(ids, [at for at, _ in found])
    made: list[int] = pieces[0].tolist()
    for piece, (_, one) in zip(pieces[1:], found, strict=True):
        for part in (encode(one.placed.text).tolist(), piece[1:].tolist()):
            made = _joined(made, part, breaks, encode)
    rest = [one for one in items if one.item.kind not in held]
    return np.array(made, np.int32), [*(one for _, one in found), *rest]


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
    for pad in {*pads.values()}:
        places, first = (ids == pad).nonzero()[0].astype(np.int32), 0
        for one in _of_pad(items, pads, pad):
            at = places[first : first + one.item.count]
            compared[at] = -one.item.serial
            spans.append(Span(one.item, at, rules[one.item.kind].two_way))
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
