"""How a family of models that see or hear is described, and what its rules are read from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from quire.families.fields import Fields
from quire.families.media.rules import MediaRules, SoundRules

MOST_SIDE = 4096  # pixels of a square that is prepared as it is
MOST_OF_ROW = 1024  # pixels along the square that becomes one row, and is an image at least


@dataclass(frozen=True, slots=True)
class MediaConfig:
    """The model's config.json and the processor's config. Options of the caller override the
    latter; they are also in `asked` by themselves. `token_text` returns the text of a token id, or
    None without a tokenizer."""

    model: Fields
    processor: Fields
    asked: Fields
    videos: Fields  # the config of the video processor, if separate
    token_text: Callable[[int], str | None]

    @classmethod
    def of(
        cls,
        model: Mapping[str, Any],
        processor: Mapping[str, Any],
        said: Mapping[str, Any],
        token_text: Callable[[int], str | None],
    ) -> MediaConfig:
        said = {name: value for name, value in said.items() if value is not None}
        return cls(
            Fields(model, "config.json"),
            Fields({**processor, **said}, "the processor's config", false_nulls=True),
            Fields(said, "mm_processor_kwargs"),
            Fields({**_of_videos(processor), **said}, "that of videos", false_nulls=True),
            token_text,
        )

    def token(self, *keys: str, unsaid: str) -> str:
        """The text of the token whose id the config has under one of these keys."""
        for key in keys:
            if self.model.values.get(key) is not None:
                if not (found := self.model.ids(key)):
                    raise self.model.wrong(key, "a token id")
                return self.token_text(found[0]) or unsaid
        return unsaid

    def side(
        self, key: str, unsaid: int, *edges: str, number: bool = True, most: int = MOST_SIDE
    ) -> int:
        """The side of a square, or one of these `edges`, at this key of the processor's config;
        `number`: also written as a number alone."""
        self.processor.refuse_null(key)
        value = self.processor.values.get(key)
        if value is None:
            return unsaid
        if isinstance(value, Mapping):
            if value.get("height") != value.get("width"):
                raise self.processor.wrong(key, "a square, or an edge")
            names = (*edges, *(("height",) if number else ()))
            found = next((name for name in names if value.get(name) is not None), None)
            if found is not None:
                return Fields(value, f"{self.processor.source}, {key}").count(found, most=most)
        elif number:
            return self.processor.count(key, most=most)
        kinds = [*edges, "height and width"] if number else edges
        raise self.processor.wrong(key, f"an object with {' or '.join(kinds)}")

    def check_patch(self, own: int, *, merged: int = 1) -> None:
        """Refuse a processor that cuts images into other patches than the `own` ones of the
        encoder. `merged`: it may name the square of so many along a side, which becomes one row."""
        for said in (self.processor, self.videos):
            check_same(said, "patch_size", own, own * merged)

    def patches_along(self, side: int, patch: int, key: str) -> int:
        """How many patches are along a side that this key of the processor's config gives."""
        if side < patch:
            raise self.processor.wrong(key, f"at least {patch}, the side of a patch")
        return side // patch


def _of_videos(processor: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config for videos, which is the one for images if there is no separate one."""
    said = processor.get("video_processor", processor)
    if not isinstance(said, Mapping):
        raise Fields(processor, "the processor's config").wrong("video_processor", "an object")
    return said


def check_same(said: Fields, key: str, own: int, *others: int, of: str = "") -> None:
    """Refuse a size of a processor's config that is neither the encoder's `own`, which config.json
    has as `of`, nor one of the others. One that is left out is the encoder's."""
    value = said.values.get(key)
    listed = list(value.values()) if isinstance(value, Mapping) else value
    sides = listed if isinstance(listed, list) else [listed]
    if value is not None and not any(all(one == size for one in sides) for size in (own, *others)):
        where = f"the {of or key} that config.json has for its vision_config"
        raise said.wrong(key, f"{own}, {where} (take both files from the same model)")


@dataclass(frozen=True, slots=True)
class MediaFamily:
    """One family of models that see or hear. `read` makes its rules for images.

    `in_text`, `sounds_in_text` and `videos_in_text`: the text for an item in chats whose template
    takes only text; "{n}" is the item's number. Empty: the placeholder."""

    name: str
    architectures: tuple[str, ...]
    module: str  # the class of Transformers whose tower and projector encode for it
    read: Callable[[MediaConfig], MediaRules] | None = None
    read_sounds: Callable[[MediaConfig], SoundRules] | None = None
    read_videos: Callable[[MediaConfig], MediaRules] | None = None
    options: tuple[str, ...] = ()  # options of its processor that callers may set
    three_axes: bool = False  # positions have three coordinates
    crossed: bool = False  # by cross-attention: an item has no text in the prompt
    in_text: str = ""
    sounds_in_text: str = ""
    embedded: bool = True  # takes embeddings as images: all numbers of rows have one text
    tower: str = ""  # the tower's model_type; empty: any
    videos_in_text: str = ""
    unused: tuple[str, ...] = ()  # configs of parts of its module that read nothing for quire
    foreign: bool = False  # Transformers reads its rules from the model's files

    @property
    def readers(self) -> dict[str, Callable[[MediaConfig], MediaRules]]:
        """The functions that make the rules, by kind of media."""
        known = {"image": self.read, "audio": self.read_sounds, "video": self.read_videos}
        return {kind: read for kind, read in known.items() if read is not None}

    def text_for(self, kind: str) -> str:
        texts = {"image": self.in_text, "audio": self.sounds_in_text, "video": self.videos_in_text}
        return texts[kind]
