"""Resizes and crops images with Pillow, in bytes. Results have the same bits as those of
Transformers' Pillow processors."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from quire.errors import InvalidPrompt
from quire.families.fields import Fields
from quire.families.media.rules import Bytes

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_ENLARGED = 1 << 27  # pixels of an image on its way to a smaller one: 400 MB
BILINEAR, BICUBIC, LANCZOS = 2, 3, 1  # Pillow's numbers for them
_MOST_FILTER = 5  # Pillow's last filter; 0 is the nearest pixel


def filter_of(said: Fields, unsaid: int) -> int:
    """The filter in a processor's config, as Pillow's number."""
    if not said.flag("do_resize", True):
        raise said.wrong("do_resize", "true: images of any size are read")
    said.refuse_null("resample")
    if (found := said.whole("resample", unsaid)) > _MOST_FILTER:
        raise said.wrong("resample", f"one of Pillow's filters, from 0 to {_MOST_FILTER}")
    return found


def pixels_of(image: Image) -> Bytes:
    """[3, height, width]"""
    return np.asarray(image, np.uint8).transpose(2, 0, 1)


def resized(image: Image, width: int, height: int, resample: int) -> Image:
    from PIL.Image import Resampling

    return image.resize((width, height), Resampling(resample))


def with_shortest_edge(width: int, height: int, edge: int) -> tuple[int, int]:
    """The size with a shorter side of `edge`, in proportion."""
    if width <= height:
        return edge, int(edge * height / width)
    return int(edge * width / height), edge


def check_enlarged(given: tuple[int, int], size: tuple[int, int]) -> None:
    """Refuse an image so thin that it takes all memory while it is made into one of this size."""
    if size[0] * size[1] > MOST_ENLARGED:
        raise InvalidPrompt(
            f"the image has {given[0]:,} x {given[1]:,} pixels, and would have {size[0]:,} x "
            f"{size[1]:,} before it is cut; at most {MOST_ENLARGED:,} are made. Crop it to what "
            "matters",
            parameter="multi_modal_data",
        )


def centre_cropped(pixels: Bytes, width: int, height: int) -> Bytes:
    """The middle of an image, with zeros around it if it is smaller."""
    _, have_height, have_width = pixels.shape
    top, left = (have_height - height) // 2, (have_width - width) // 2
    if top < 0 or left < 0:
        tall, wide = max(height, have_height), max(width, have_width)
        first_row, first_column = ceil((tall - have_height) / 2), ceil((wide - have_width) / 2)
        padded = np.zeros((3, tall, wide), np.uint8)
        rows = slice(first_row, first_row + have_height)
        padded[:, rows, first_column : first_column + have_width] = pixels
        pixels, top, left = padded, max(top + first_row, 0), max(left + first_column, 0)
    return pixels[:, top : top + height, left : left + width]


def squared(image: Image, colour: tuple[int, ...]) -> Image:
    """The image in the middle of a square of one colour, as large as its longer side."""
    from PIL import Image as images

    width, height = image.size
    if width == height:
        return image
    side = max(width, height)
    square = images.new("RGB", (side, side), colour)
    square.paste(image, ((side - width) // 2, (side - height) // 2))
    return square
