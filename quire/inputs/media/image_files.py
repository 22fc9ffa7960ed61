"""Decodes images from files and bytes, in a process of its own (child.py).

The header is checked before anything is decoded. An image is rotated as its EXIF data says.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from quire.inputs.media.images import MOST_PIXELS, bad, checked_size, images, rgb

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
_ORIENTATION = 0x0112  # EXIF
# EXIF orientation -> Pillow's number of the operation that undoes it. Orientations from 5 on swap
# width and height.
_TURNS = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}


def tasks() -> dict[str, Any]:
    """The tasks by name. Everything that they need is imported here, before the first task."""
    from PIL import AvifImagePlugin

    images().init()
    with suppress(ImportError):  # Pillow may lack it; images that need it are then refused
        import_module("PIL.ImageCms")  # for colours in LAB
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # the stack of each thread would count as memory
    return {"about": about, "pixels": pixels}


def about(file: BinaryIO) -> Iterator[dict[str, Any]]:
    """Yield the image's size after rotation, and how it is rotated."""
    image = _opened(file)
    turn = _TURNS.get(_orientation(image))
    width, height = image.size
    swapped = turn is not None and turn in (2, 4, 5, 6)
    yield {"size": [height, width] if swapped else [width, height], "turn": turn}


def pixels(file: BinaryIO, turn: int | None) -> Iterator[Any]:
    """[height, width, 3] in RGB."""
    image = _opened(file)
    image.load()
    image = rgb(image)
    yield np.asarray(image if turn is None else image.transpose(images().Transpose(turn)))


def _opened(file: BinaryIO) -> Image:
    module = images()
    try:
        image: Image = module.open(io.BytesIO(file.read()), formats=FORMATS)
    except module.DecompressionBombError:
        raise bad(f"has more than {MOST_PIXELS:,} pixels, by its header") from None
    except module.UnidentifiedImageError:
        raise bad(f"is in no format that quire reads ({', '.join(FORMATS)})") from None
    checked_size(*image.size)
    return image


def _orientation(image: Image) -> int:
    """The orientation in the EXIF data, or 1 if it cannot be read. For a PNG only data before its
    pixels is used, or Pillow would decode the image. Pillow rotates a TIFF itself."""
    if image.format not in ("JPEG", "WEBP", "AVIF") and "exif" not in image.info:
        return 1
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # Pillow may raise anything for untrusted bytes
        return 1
