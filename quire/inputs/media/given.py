"""`multi_modal_data` as callers write it -> images, sounds and videos, one after the other.

One image or several: a Pillow image, an array of bytes, encoded bytes, a path below the folder that
was allowed; a list of these, or an array with one dimension more. Sounds: see sounds.py, videos:
videos.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from quire.errors import InvalidPrompt, NotSupported
from quire.inputs.media.allowed import KINDS, UNLIMITED, WORDS, MediaOptions
from quire.inputs.media.children import MediaChildren
from quire.inputs.media.embedded import EmbeddedImage, are_embeddings, read_embedded
from quire.inputs.media.files import allowed_file, of_dataset
from quire.inputs.media.images import (
    MOST_BYTES,
    ArrayImage,
    EncodedImage,
    ImageSource,
    OpenImage,
    is_pillow,
)
from quire.inputs.media.sounds import SoundSource, listed_sounds, read_sound
from quire.inputs.media.urls import MediaUrl
from quire.inputs.media.videos import FileVideo, FrameVideo, listed_videos, read_video

Source = TypeVar("Source", bound=ImageSource | SoundSource | EmbeddedImage | FrameVideo | FileVideo)


@dataclass(frozen=True, slots=True)
class Given(Generic[Source]):
    """One item, and the name that the caller has for it."""

    source: Source
    uuid: str | None = None


def check_kinds(data: Mapping[str, Any], taken: Collection[str]) -> None:
    """Media of other kinds than the model takes are refused."""
    for kind, value in data.items():
        if kind not in KINDS:
            raise InvalidPrompt(
                f"multi_modal_data has {str(kind)[:40]!r}; known are {', '.join(KINDS)}",
                parameter="multi_modal_data",
                value=kind,
            )
        if kind not in taken and value is not None and len(_listed(value)):
            read = " and ".join(WORDS[each][1] for each in taken)
            raise NotSupported(f"multi_modal_data has {kind!r}: this model reads {read} alone.")


def read_images(
    data: Mapping[str, Any], uuids: Any, options: MediaOptions, children: MediaChildren
) -> Sequence[Given[Any]]:
    """The images of a prompt, each checked by its header; or rows that their tower would make."""
    given = [] if data.get("image") is None else _listed(data["image"])
    if are_embeddings(data.get("image")):
        rows = read_embedded(data["image"], allowed=options.embeddings)
        return _read("image", rows, uuids, options, lambda one: one)
    return _read(
        "image", given, uuids, options, partial(read_image, options=options, children=children)
    )


def read_sounds(
    data: Mapping[str, Any],
    uuids: Any,
    options: MediaOptions,
    rate: int,
    children: MediaChildren,
) -> list[Given[SoundSource]]:
    """The sounds of a prompt, for a model that takes `rate` samples in a second."""
    given = [] if data.get("audio") is None else listed_sounds(data["audio"])
    read = partial(read_sound, options=options, rate=rate, children=children)
    return _read("audio", given, uuids, options, read)


def read_videos(
    data: Mapping[str, Any], uuids: Any, options: MediaOptions, children: MediaChildren
) -> list[Given[FrameVideo | FileVideo]]:
    """The videos of a prompt."""
    given = [] if data.get("video") is None else listed_videos(data["video"])
    return _read(
        "video", given, uuids, options, partial(read_video, options=options, children=children)
    )


def _read(
    kind: str, given: list[Any], uuids: Any, options: MediaOptions, read: Callable[[Any], Source]
) -> list[Given[Source]]:
    most, (word, several) = options.most.get(kind, UNLIMITED), WORDS[kind]
    if len(given) > most:
        raise InvalidPrompt(
            f"the prompt has {len(given)} {several}; limit_mm_per_prompt allows {most}",
            parameter="multi_modal_data",
            value=len(given),
        )
    made = []
    for number, (one, name) in enumerate(
        zip(given, _names(uuids, kind, len(given)), strict=True), 1
    ):
        try:
            made.append(Given(read(one), name))
        except InvalidPrompt as error:
            which = f"{word} {number} of {len(given)}: " if len(given) > 1 else ""
            message = which + error.message
            raise InvalidPrompt(message, parameter=error.parameter, value=error.value) from None
    return made


def _listed(value: Any) -> list[Any]:
    if isinstance(value, np.ndarray) and value.ndim == 4:
        return list(value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return list(value)
    return [value]


def read_image(given: Any, options: MediaOptions, children: MediaChildren) -> ImageSource:
    if isinstance(given, bytes | bytearray | memoryview):
        return EncodedImage.of(bytes(given), children)
    if is_pillow(given):
        return OpenImage.of(given)
    if isinstance(given, np.ndarray):
        return ArrayImage.of(given)
    if isinstance(given, MediaUrl):
        return EncodedImage.of(given.read(options.folder, options.hosts, MOST_BYTES), children)
    if isinstance(given, Path):
        return EncodedImage.of(allowed_file(str(given), options.folder), children)
    if isinstance(given, Mapping):  # as datasets have it, not decoded
        return read_image(of_dataset(given, "image"), options, children)
    if isinstance(given, str):
        raise InvalidPrompt(
            "the image is text; pass a Pillow image, bytes, an array or a pathlib.Path here, or a "
            "URL as an image_url part of a chat",
            parameter="multi_modal_data",
        )
    raise InvalidPrompt(
        f"the image is a {type(given).__name__}; pass a Pillow image, bytes, or a numpy array of "
        "bytes",
        parameter="multi_modal_data",
    )


def _names(given: Any, kind: str, count: int) -> list[str | None]:
    """The caller's names for the media of a prompt: one, or one for each; None: by content."""
    value = given.get(kind) if isinstance(given, Mapping) else given
    names = [value] * min(count, 1) if value is None or isinstance(value, str) else list(value)
    if value is None:
        names = [None] * count
    if len(names) != count or not all(n is None or (isinstance(n, str) and n) for n in names):
        raise InvalidPrompt(
            f"multi_modal_uuids names {len(names)} {WORDS[kind][1]} and the prompt has {count}; it "
            "has a text or None for each",
            parameter="multi_modal_uuids",
        )
    return names
