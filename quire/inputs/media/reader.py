"""MediaReader turns the media that a caller passed for a prompt into spans of a request."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np

from quire.errors import InvalidPrompt
from quire.families.media.rules import MediaRules, Placed, SoundRules
from quire.inputs.encoder_prompts import NO_SOUND
from quire.inputs.media.ahead import LookAhead, Looked, is_encoded
from quire.inputs.media.allowed import WORDS, Fetching, MediaOptions
from quire.inputs.media.embedded import EmbeddedImage
from quire.inputs.media.expanding import (
    Grown,
    PlacedItem,
    Rules,
    check_no_places,
    grow_ids,
    grow_text,
    heard_by,
)
from quire.inputs.media.given import Source, check_kinds, listed, read_each, read_source
from quire.inputs.media.identity import MOST_KNOWN, Serials
from quire.inputs.media.images import MOST_BYTES
from quire.inputs.media.preparing import MediaPool, PreparedMedium
from quire.inputs.media.urls import MediaUrl
from quire.inputs.parse import GivenMedia
from quire.inputs.quoting import ChatText
from quire.inputs.tokenizer import Tokenizer
from quire.request import Arrays, Ints, MediaItem, Span
from quire.step import Encode


class MediaReader:
    def __init__(
        self,
        make_rules: Callable[[Mapping[str, Any]], Rules],
        tokenizer: Tokenizer,
        pool: MediaPool,
        options: MediaOptions,
        *,
        three_axes: bool = False,
        crossed: bool = False,
        pass_tokens: int | None = None,
        row_width: int | None = None,
    ) -> None:
        """`make_rules` makes the LLM's rules, with some options of its processor changed.
        `three_axes`: positions have three coordinates. `crossed`: the decoder attends to a prompt's
        one item. `pass_tokens`: the most tokens computed at once. `row_width`: of rows that may be
        given in place of an image (None: none may)."""
        self._three_axes, self.crossed = three_axes, crossed
        self._pass_tokens, self._row_width = pass_tokens, row_width
        self._make_rules, self.rules = make_rules, make_rules({})
        self.pool, self._options = pool, options
        self._tokenizer, self._serials = tokenizer, Serials()
        self._uuids: OrderedDict[str, bytes] = OrderedDict()

    def for_call(self, options: Mapping[str, Any]) -> CallMedia:
        """A reader for the prompts of one call, all with these options of the processor."""
        return CallMedia(self, options)

    def rules_with(self, options: Mapping[str, Any]) -> Rules:
        return self._make_rules(options) if options else self.rules

    def read_each(
        self, kind: str, given: GivenMedia, read: Callable[[Any, str | None, int], PlacedItem]
    ) -> list[PlacedItem]:
        """Call `read` for each item of a kind, with its name and how many items the prompt has."""
        value = given.data.get(kind)
        several = [] if value is None else listed(kind, value, self._options)
        together = len(several)
        return read_each(
            kind, several, given.uuids, self._options, lambda one, name: read(one, name, together)
        )

    def fetched(self, given: GivenMedia) -> GivenMedia:
        """The same with URLs replaced by bytes or the path of a file. May wait for a network."""
        options, fetching = self._options, Fetching(self._options.hosts)

        def read(one: Any, name: str | None) -> Any:
            return one.read(options.folder, MOST_BYTES, fetching) if _is_url(one) else one

        data = {
            kind: read_each(kind, value, None, options, read)
            if isinstance(value, list) and any(map(_is_url, value))
            else value
            for kind, value in given.data.items()
        }
        return replace(given, data=data)

    def looked_at(self, given: GivenMedia) -> Looked:
        """The media of a prompt, whose URLs and headers are all read, and placed once. Reading the
        prompt then waits for neither a network nor a decoder, nor for a processor of Transformers,
        which takes seconds for the first image of a size. Any thread may call this."""
        check_kinds(given.data, self.rules)
        found = self.fetched(given)
        sources: dict[int, Source] = {}
        for kind in self.rules.keys() & found.data.keys():
            value = found.data[kind]
            several = [] if value is None else listed(kind, value, self._options)
            look = partial(self._look, kind, len(several), sources)
            read_each(kind, several, None, self._options, look)
        return Looked(found, sources)

    def _look(
        self, kind: str, together: int, sources: dict[int, Source], one: Any, name: str | None
    ) -> None:
        if is_encoded(one):
            rules = self.rules[kind]
            source = sources[id(one)] = self._source(kind, rules, one)
            if not isinstance(source, EmbeddedImage):
                rules.place(*source.size, together=together)

    def check_no_media(self, prompt: ChatText | Ints) -> None:
        """Raise InvalidPrompt if a prompt without media needs some."""
        if self.crossed:
            raise InvalidPrompt(NO_SOUND, parameter="multi_modal_data")
        check_no_places(prompt, self.rules, self._tokenizer.backend.token_to_id)

    def grow_text(
        self, chat: ChatText, items: tuple[PlacedItem, ...]
    ) -> tuple[ChatText, tuple[PlacedItem, ...]]:
        if self.crossed:
            return chat, items
        return grow_text(chat, self.rules, items)

    def grow_ids(self, ids: Ints, items: Sequence[PlacedItem], *, from_text: bool) -> Grown:
        """`from_text`: the ids are those of a text that `grow_text` made, and so is the order of
        the items."""
        if self.crossed:
            return heard_by(ids, items[0].item)
        encode = None
        if not from_text:
            encode = partial(self._tokenizer.encode, add_special_tokens=False)
        grown = grow_ids(ids, self.rules, items, self._tokenizer.backend.token_to_id, encode)
        if self._pass_tokens is not None and grown.most_at_once > self._pass_tokens:
            raise InvalidPrompt(
                f"an image has {grown.most_at_once} tokens that see each other and are computed at "
                f"once, and max_num_batched_tokens is {self._pass_tokens}. Make it as many",
                parameter="multi_modal_data",
                value=grown.most_at_once,
            )
        if not self._three_axes:
            return grown
        coordinates, delta = coordinates_of(len(grown.plain_ids), grown.spans)
        return replace(grown, coordinates=coordinates, delta=delta)

    def item(
        self,
        kind: str,
        given: Any,
        name: str | None,
        together: int,
        rules: MediaRules,
        source: Source | None = None,
    ) -> PlacedItem:
        """One of the `together` items of its kind in a prompt, and the tokens that stand for it.
        Nothing is decoded yet. `source` is given if it was read in advance."""
        source = source or self._source(kind, rules, given)
        self._check_name(kind, name, source.content)
        if isinstance(source, EmbeddedImage):
            return self._embedded(source, rules)
        placed = rules.place(*source.size, together=together)
        key = (source.content, f"{kind} {rules!r} {placed!r}")

        def make(serial: int) -> MediaItem:
            aside = self.pool.aside

            def prepare() -> Arrays:
                arrays = rules.prepare(source.open(), together=together)
                if aside is None:
                    return arrays
                return aside.encode(Encode(serial, kind, placed.count, dict(arrays)))

            made = rules.num_bytes(*source.size, together=together)
            rows = 0 if aside is None else aside.row_bytes * placed.count
            most = max(made, rows, _decoded_bytes(*source.size))
            features = PreparedMedium(self.pool, prepare, most)
            return MediaItem(serial, kind, placed.count, features, placed.grid, placed.step)

        return PlacedItem(self._serials.item(key, make), placed)

    def _source(self, kind: str, rules: MediaRules, given: Any) -> Source:
        rate = cast(SoundRules, rules).rate if kind == "audio" else 0
        return read_source(kind, given, self._options, self.pool.children, rate)

    def _embedded(self, given: EmbeddedImage, rules: MediaRules) -> PlacedItem:
        """Rows that the caller encoded. They stand where an image would, one token for each."""
        count, width = given.rows.shape
        wrong = None
        if self._row_width is None:
            wrong = "where its tokens stand depends on its size; pass the image itself"
        elif width != self._row_width:
            wrong = f"its rows are {width} wide, and the model's tower makes {self._row_width}"
        elif self._three_axes and given.grid is None:
            wrong = "its positions follow from a grid; pass image_embeds and image_grid_thw"
        if wrong is not None:
            raise InvalidPrompt(f"the image is embeddings: {wrong}", parameter="multi_modal_data")
        placed = Placed(rules.place(1, 1, together=1).text, (count,), given.grid)
        key = (given.content, f"embedded {placed!r}")
        item = self._serials.item(
            key, lambda serial: MediaItem(serial, "image", count, given, given.grid)
        )
        return PlacedItem(item, placed)

    def _check_name(self, kind: str, uuid: str | None, content: bytes) -> None:
        """Check that a caller's name means only one content, as long as it is remembered."""
        if uuid is None:
            return
        if len(self._uuids) > MOST_KNOWN:
            self._uuids.popitem(last=False)
        if self._uuids.setdefault(uuid, content) != content:
            raise InvalidPrompt(
                f"the uuid {uuid[:100]!r} names two different {WORDS[kind][1]}; give each content "
                "its own, or None",
                parameter="multi_modal_uuids",
                value=uuid,
            )


class CallMedia:
    """The media of the prompts of one call. An object that occurs in many prompts is read once,
    because hashing an image takes as long as all other work for a prompt."""

    def __init__(self, reader: MediaReader, options: Mapping[str, Any]) -> None:
        self._reader, self._options = reader, options
        # The rules used last, with their options.
        self._rules: tuple[Mapping[str, Any], Rules] | None = None
        # By the ids of an object and its rules, which are held: others might get their ids.
        self._known: dict[tuple[Any, ...], tuple[PlacedItem, Any, MediaRules]] = {}
        self._alone: dict[tuple[Any, int], tuple[list[PlacedItem], Any]] = {}  # of whole prompts
        self._ahead: LookAhead | None = None
        self._sources: dict[int, tuple[Source, GivenMedia]] = {}  # by ids of held items

    def look_ahead(self, prompts: Sequence[GivenMedia]) -> None:
        """Read the media of these prompts in advance. They will be read in this order."""
        self._reader.pool.children.likely = len(prompts)
        if len(prompts) > 1:
            self._ahead = LookAhead(prompts, self._reader.looked_at)

    def __enter__(self) -> CallMedia:
        return self

    def __exit__(self, *_: object) -> None:
        if self._ahead is not None:
            self._ahead.close()

    def read(self, given: GivenMedia) -> list[PlacedItem]:
        """The items of a prompt, with the tokens that stand for each. The prompt's own options of
        the processor override those of the call."""
        if len(given.data) > 1 or given.uuids is not None or given.options:
            return self._read(given)
        [(kind, value)] = given.data.items()
        if (kind, id(value)) not in self._alone:
            self._alone[kind, id(value)] = self._read(given), value
        return self._alone[kind, id(value)][0]

    def _read(self, given: GivenMedia) -> list[PlacedItem]:
        looked = None if self._ahead is None else self._ahead.take(given)
        changed = {**self._options, **given.options}
        if self._rules is None or self._rules[0] != changed:
            self._rules = changed, self._reader.rules_with(changed)
        rules = self._rules[1]
        check_kinds(given.data, rules)
        if looked is None:
            given = self._reader.fetched(given)
        else:
            given = looked.given
            self._sources |= {at: (source, given) for at, source in looked.sources.items()}
        items: list[PlacedItem] = []
        for kind, mine in rules.items():
            items += self._reader.read_each(kind, given, partial(self._item, kind, mine))
        return items

    def _item(
        self, kind: str, rules: MediaRules, given: Any, name: str | None, together: int
    ) -> PlacedItem:
        key = (id(given), id(rules), together, name)
        if key not in self._known:
            source = self._sources.get(id(given), (None,))[0]
            made = self._reader.item(kind, given, name, together, rules, source)
            self._known[key] = made, given, rules
        return self._known[key][0]


def _is_url(given: object) -> bool:
    return isinstance(given, MediaUrl)


def _decoded_bytes(*size: Any) -> int:
    """An image's bytes, which may be far more than is made of them. All else comes in parts."""
    return 3 * size[0] * size[1] if len(size) == 2 else 0


def coordinates_of(length: int, spans: Sequence[Span]) -> tuple[Ints, int]:
    """The coordinates [3, length] (time, height, width) of a prompt, and what is added to a later
    index to get its position. A token of text has three equal ones. An image's rows lie on a grid
    that begins where the text before it ended; the text behind goes on after the largest. Each run
    of adjacent rows of a video is such a grid, and what stands between runs is text.

    An image of 1 x 2 x 2 rows at index 1 of 7: 0 1 1 1 1 3 4 / 0 1 1 2 2 3 4 / 0 1 2 1 2 3 4, -2.
    """
    made = np.empty((3, length), np.int32)
    at = first = 0
    for span in spans:
        gaps = np.flatnonzero(np.diff(span.places) != 1) + 1
        for places in np.split(span.places, gaps):
            start, count = int(places[0]), len(places)
            made[:, first:start] = np.arange(at, at + start - first)
            at += start - first
            _, height, width = span.item.grid or (1, 1, count)
            grid = np.indices((count // (height * width), height, width)).reshape(3, -1)
            grid[0] = grid[0] * span.item.step
            made[:, start : start + count] = grid + at
            at, first = at + int(grid.max()) + 1, start + count
    made[:, first:] = np.arange(at, at + length - first)
    return made, at + length - first - length
