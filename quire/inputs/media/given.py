"""Turns `multi_modal_data`, as callers write it, into images, sounds and videos, one by one.

Images: a Pillow image, an array of bytes, encoded bytes, or a path below the allowed folder; a list
of these, or an array with one dimension more. Sounds: see sounds.py, videos: videos.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from quire.errors import InvalidPrompt, NotSupported
from quire.inputs.media.allowed import KINDS, UNLIMITED, WORDS, MediaOptions, bad_medium
from quire.inputs.media.children import MediaChildren
from quire.inputs.media.embedded import EmbeddedImage, are_embeddings, read_embedded
from quire.inputs.media.files import allowed_file, of_dataset
from quire.inputs.media.images import ArrayImage, EncodedImage, ImageSource, OpenImage, is_pillow
from quire.inputs.media.sounds import SoundSource, listed_sounds, read_sound
from quire.inputs.media.videos import FileVideo, FrameVideo, listed_videos, read_video

Source = ImageSource | SoundSource | EmbeddedImage | FrameVideo | FileVideo
Made = TypeVar("Made")


def check_kinds(data: Mapping[str, Any], taken: Collection[str]) -> None:
    """Refuse media of kinds that the model does not take."""
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


def listed(kind: str, value: Any, options: MediaOptions) -> list[Any]:
    """The items that the caller passed for a kind, one by one; embeddings are read already."""
    if kind == "audio":
        return listed_sounds(value)
    if kind == "video":
        return listed_videos(value)
    if are_embeddings(value):
        return list(read_embedded(value, allowed=options.embeddings))
    return _listed(value)


def read_source(
    kind: str, given: Any, options: MediaOptions, children: MediaChildren, rate: int = 0
) -> Source:
    """Read one item and check its header; `rate` is the model's samples of sound per second."""
    if kind == "audio":
        return read_sound(given, options, rate, children)
    if kind == "video":
        return read_video(given, options, children)
    return given if isinstance(given, EmbeddedImage) else read_image(given, options, children)


def read_each(
    kind: str,
    given: list[Any],
    uuids: Any,
    options: MediaOptions,
    read: Callable[[Any, str | None], Made],
) -> list[Made]:
    """Call `read` for each item, with the caller's name for it; an error says which item it is."""
    most, (word, several) = options.most.get(kind, UNLIMITED), WORDS[kind]
    if len(given) > most:
        raise InvalidPrompt(
            f"the prompt has {len(given)} {several}; limit_mm_per_prompt allows {most}",
            parameter="multi_modal_data",
            value=len(given),
        )
    made: list[Made] = []
    for one, name in zip(given, _names(uuids, kind, len(given)), strict=True):
        try:
            made.append(read(one, name))
        except InvalidPrompt as error:
            which = f"{word} {len(made) + 1} of {len(given)}: " if len(given) > 1 else ""
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
    if isinstance(given, Path):
        return EncodedImage.of(allowed_file(str(given), options.folder), children)
    if isinstance(given, Mapping):  # an item of a dataset, not decoded
        return read_image(of_dataset(given, "image"), options, children)
    if isinstance(given, str):
        raise bad_medium(
            "image",
            "is text; pass a Pillow image, bytes, an array or a pathlib.Path here, or a URL as an "
            "image_url part of a chat",
        )
    kind = type(given).__name__
    raise bad_medium("image", f"is a {kind}; pass a Pillow image, bytes, or a numpy array of bytes")


def _names(given: Any, kind: str, count: int) -> list[str | None]:
    """The caller's names for the media of a prompt: one, or one (or None: by content) for each."""
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
