"""What a family of models that see or hear says of itself, and what its rules are read from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from quire.families.fields import Fields
from quire.families.media.rules import MediaRules, SoundRules


@dataclass(frozen=True, slots=True)
class MediaConfig:
    """A model's config.json and its processor's, with what callers said over it, which is also in
    `asked` alone; `token_text` gives the text of a token id, None where there is no tokenizer."""

    model: Fields
    processor: Fields
    asked: Fields
    videos: Fields  # the processor of videos, which may have a config of its own
    token_text: Callable[[int], str | None]

    @classmethod
    def of(
        cls,
        model: Mapping[str, Any],
        processor: Mapping[str, Any],
        said: Mapping[str, Any],
        token_text: Callable[[int], str | None],
    ) -> MediaConfig:
        return cls(
            Fields(model, "config.json"),
            Fields({**processor, **said}, "the processor's config"),
            Fields(said, "mm_processor_kwargs"),
            Fields({**_of_videos(processor), **said}, "that of videos"),
            token_text,
        )

    def token(self, *keys: str, unsaid: str) -> str:
        """The token whose id the config has under one of these keys."""
        for key in keys:
            if self.model.values.get(key) is not None:
                if not (found := self.model.ids(key)):
                    raise self.model.wrong(key, "a token id")
                return self.token_text(found[0]) or unsaid
        return unsaid

    def side(self, key: str, unsaid: int) -> int:
        """The side of a square, or the shortest edge, that a processor's config has there."""
        value = self.processor.values.get(key)
        if value is None:
            return unsaid
        if isinstance(value, Mapping):
            if value.get("height") != value.get("width"):
                raise self.processor.wrong(key, "a square, or an edge")
            inner = Fields(value, f"{self.processor.source}, {key}")
            names = ("shortest_edge", "height", "width", "longest_edge")
            named = next((name for name in names if value.get(name) is not None), "height")
            return inner.count(named)
        return self.processor.count(key)


def _of_videos(processor: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is said of videos, which is what is said of images where it is not said apart."""
    said = processor.get("video_processor", processor)
    if not isinstance(said, Mapping):
        raise Fields(processor, "the processor's config").wrong("video_processor", "an object")
    return said


@dataclass(frozen=True, slots=True)
class MediaFamily:
    """One family of models that see or hear; `read` makes its rules for images.

    `in_text` is what stands for an image in a chat whose template takes text alone,
    `sounds_in_text` for a sound, `videos_in_text` for a video; "{n}" in it is the item's number.
    Empty: the placeholder."""

    name: str
    architectures: tuple[str, ...]
    module: str  # the class of Transformers whose tower and projector encode for it
    read: Callable[[MediaConfig], MediaRules] | None = None
    read_sounds: Callable[[MediaConfig], SoundRules] | None = None
    read_videos: Callable[[MediaConfig], MediaRules] | None = None
    options: tuple[str, ...] = ()  # of its processor, that callers may set
    three_axes: bool = False  # positions have three coordinates
    crossed: bool = False  # its decoder attends to an item, for which nothing stands in the prompt
    in_text: str = ""
    sounds_in_text: str = ""
    embedded: bool = True  # whether what stands for an image is the same for any number of rows
    tower: str = ""  # the kind of tower that models of these architectures have; empty: any other
    videos_in_text: str = ""
    foreign: bool = False  # its rules are read by Transformers, from the model's files

    @property
    def readers(self) -> dict[str, Callable[[MediaConfig], MediaRules]]:
        """What makes the rules of each kind of media that it takes."""
        known = {"image": self.read, "audio": self.read_sounds, "video": self.read_videos}
        return {kind: read for kind, read in known.items() if read is not None}

    def text_for(self, kind: str) -> str:
        texts = {"image": self.in_text, "audio": self.sounds_in_text, "video": self.videos_in_text}
        return texts[kind]
