"""MediaReader: the media of a prompt, from what the caller wrote to spans of a request."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from quire.errors import InvalidPrompt
from quire.families.media.rules import MediaRules, Placed, SoundRules
from quire.inputs.media.allowed import WORDS, MediaOptions
from quire.inputs.media.coordinates import coordinates_of
from quire.inputs.media.embedded import EmbeddedImage
from quire.inputs.media.expanding import Grown, PlacedItem, Rules, grow_ids, grow_text, heard_by
from quire.inputs.media.given import Given, check_kinds, read_images, read_sounds, read_videos
from quire.inputs.media.identity import MOST_KNOWN, Serials
from quire.inputs.media.images import MOST_BYTES
from quire.inputs.media.preparing import MediaPool, PreparedMedium
from quire.inputs.media.urls import MediaUrl
from quire.inputs.parse import GivenMedia
from quire.inputs.quoting import ChatText
from quire.inputs.tokenizer import Tokenizer
from quire.request import Arrays, Ints, MediaItem


class MediaReader:
    """Reads the media of one LLM's prompts."""

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
        """`make_rules` makes those of an LLM with some of its processor's options changed;
        `three_axes`: the model's positions have three coordinates; `crossed`: its decoder attends
        to the one item of a prompt; `pass_tokens`: the most that are computed at once; `row_width`
        of rows that may come instead of an image, None: none may."""
        self._three_axes, self.crossed = three_axes, crossed
        self._pass_tokens, self._row_width = pass_tokens, row_width
        self._make_rules, self.rules = make_rules, make_rules({})
        self.pool, self._options = pool, options
        self._tokenizer, self._serials = tokenizer, Serials()
        self._uuids: OrderedDict[str, bytes] = OrderedDict()

    def read(self, given: GivenMedia, options: Mapping[str, Any]) -> list[PlacedItem]:
        """The items of a prompt, with what stands for each; nothing is decoded yet. `options` of
        the processor are for all prompts, and the prompt's own go before them."""
        changed = {**options, **given.options}
        rules = self._make_rules(changed) if changed else self.rules
        check_kinds(given.data, rules)
        items: list[PlacedItem] = []
        for kind, mine in rules.items():
            found = self._sources(kind, given, mine)
            items += [self._item(kind, one, len(found), mine) for one in found]
        return items

    def _sources(self, kind: str, given: GivenMedia, rules: MediaRules) -> Sequence[Given[Any]]:
        if kind == "audio":
            rate = cast(SoundRules, rules).rate
            return read_sounds(given.data, given.uuids, self._options, rate, self.pool.children)
        read = read_videos if kind == "video" else read_images
        return read(given.data, given.uuids, self._options, self.pool.children)

    def fetched(self, given: GivenMedia) -> GivenMedia:
        """The same with what URLs stand for read: bytes, or a file. May wait for a network, which
        reading a prompt must not where others wait for it."""
        options = self._options
        data = {
            kind: [
                one.read(options.folder, options.hosts, MOST_BYTES)
                if isinstance(one, MediaUrl)
                else one
                for one in several
            ]
            for kind, several in given.data.items()
        }
        return replace(given, data=data)

    def grow_text(self, chat: ChatText, items: Sequence[PlacedItem]) -> ChatText:
        if self.crossed:
            return chat
        return grow_text(chat, self.rules, items)

    def grow_ids(self, ids: Ints, items: Sequence[PlacedItem], *, from_text: bool) -> Grown:
        """`from_text`: the ids are those of a text that has grown."""
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

    def _item(self, kind: str, given: Given[Any], together: int, rules: MediaRules) -> PlacedItem:
        source = given.source
        self._check_name(kind, given.uuid, source.content)
        if isinstance(source, EmbeddedImage):
            return self._embedded(source, rules)
        placed = rules.place(*source.size, together=together)
        key = (source.content, f"{kind} {rules!r} {placed!r}")

        def make(serial: int) -> MediaItem:
            prepare = partial(_prepare, rules, source, together)
            num_bytes = rules.num_bytes(*source.size, together=together)
            features = PreparedMedium(self.pool, prepare, num_bytes)
            return MediaItem(serial, kind, placed.count, features, placed.grid, placed.step)

        return PlacedItem(self._serials.item(key, make), placed)

    def _embedded(self, given: EmbeddedImage, rules: MediaRules) -> PlacedItem:
        """What the caller encoded: it stands where an image would, in as many rows as it has."""
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
        """A name of the caller's means one content, for as long as it is known."""
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


def _prepare(rules: MediaRules, source: Any, together: int) -> Arrays:
    return rules.prepare(source.open(), together=together)
