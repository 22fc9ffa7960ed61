"""`multi_modal_data` as callers write it -> images, one after the other.

One image or several: a Pillow image, an array of bytes, encoded bytes, a path below the folder that
was allowed; a list of these, or an array with one dimension more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from quire.errors import InvalidPrompt, NotSupported
from quire.inputs.media.files import allowed_file
from quire.inputs.media.images import (
    MOST_BYTES,
    ArrayImage,
    EncodedImage,
    ImageSource,
    OpenImage,
    is_pillow,
)
from quire.inputs.media.urls import MediaUrl

_KINDS = ("image", "audio", "video")


@dataclass(frozen=True, slots=True)
class MediaOptions:
    """What an LLM allows of media."""

    most_images: int = 999
    folder: str | None = None  # that files may be read from
    hosts: tuple[str, ...] = ()  # that media may be fetched from


@dataclass(frozen=True, slots=True)
class GivenImage:
    """One image, and the name that the caller has for it."""

    source: ImageSource
    uuid: str | None = None


def read_images(data: Mapping[str, Any], uuids: Any, options: MediaOptions) -> list[GivenImage]:
    """The images of a prompt, each checked by its header."""
    for kind, value in data.items():
        if kind not in _KINDS:
            raise InvalidPrompt(
                f"multi_modal_data has {str(kind)[:40]!r}; known are {', '.join(_KINDS)}",
                parameter="multi_modal_data",
                value=kind,
            )
        if kind != "image" and value is not None and len(_listed(value, kind)):
            raise NotSupported(f"multi_modal_data has {kind!r}: this model reads images alone.")
    given = [] if data.get("image") is None else _listed(data["image"], "image")
    if len(given) > options.most_images:
        raise InvalidPrompt(
            f"the prompt has {len(given)} images; limit_mm_per_prompt allows {options.most_images}",
            parameter="multi_modal_data",
            value=len(given),
        )
    names = _names(uuids, len(given))
    return [
        GivenImage(_numbered(one, number, len(given), options), name)
        for number, (one, name) in enumerate(zip(given, names, strict=True))
    ]


def _listed(value: Any, kind: str) -> list[Any]:
    if isinstance(value, np.ndarray) and value.ndim == 4:
        return list(value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return list(value)
    return [value]


def _numbered(given: Any, number: int, total: int, options: MediaOptions) -> ImageSource:
    """The image, or an error that says which it is."""
    try:
        return read_image(given, options)
    except InvalidPrompt as error:
        which = f"image {number + 1} of {total}: " if total > 1 else ""
        message = which + error.message
        raise InvalidPrompt(message, parameter=error.parameter, value=error.value) from None


def read_image(given: Any, options: MediaOptions) -> ImageSource:
    if isinstance(given, bytes | bytearray | memoryview):
        return EncodedImage.of(bytes(given))
    if is_pillow(given):
        return OpenImage.of(given)
    if isinstance(given, np.ndarray):
        return ArrayImage.of(given)
    if isinstance(given, MediaUrl):
        return EncodedImage.of(given.read(options.folder, options.hosts, MOST_BYTES))
    if isinstance(given, Path):
        return EncodedImage.of(allowed_file(str(given), options.folder))
    if isinstance(given, str):
        raise InvalidPrompt(
            "the image is text; pass a Pillow image, bytes or an array here, or a URL as an "
            "image_url part of a chat",
            parameter="multi_modal_data",
        )
    kind = type(given)
    if f"{kind.__module__}.{kind.__name__}" == "torch.Tensor":
        raise InvalidPrompt(
            "the image is a tensor of torch, which scripts for vLLM pass for embeddings; pass "
            "pixels as a numpy array of bytes, [height, width, 3]",
            parameter="multi_modal_data",
        )
    raise InvalidPrompt(
        f"the image is a {kind.__name__}; pass a Pillow image, bytes, or a numpy array of bytes",
        parameter="multi_modal_data",
    )


def _names(given: Any, count: int) -> list[str | None]:
    """The caller's names for the images of a prompt: one, or one for each; None: by content."""
    value = given.get("image") if isinstance(given, Mapping) else given
    names = [value] * min(count, 1) if value is None or isinstance(value, str) else list(value)
    if value is None:
        names = [None] * count
    if len(names) != count or not all(n is None or (isinstance(n, str) and n) for n in names):
        raise InvalidPrompt(
            f"multi_modal_uuids names {len(names)} images and the prompt has {count}; it has a "
            "text or None for each",
            parameter="multi_modal_uuids",
        )
    return names
