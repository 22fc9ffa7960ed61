"""Images in files and bytes, decoded: in a process of its own (child.py).

Nothing is decoded before its header was judged, and an image is turned as its EXIF says.
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
# What is done to an image of each orientation, as Pillow numbers it; those from 5 on swap sides.
_TURNS = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}


def tasks() -> dict[str, Any]:
    """By name; all that they import is there before the first."""
    from PIL import AvifImagePlugin

    images().init()
    with suppress(ImportError):  # built without it: what needs it is refused
        import_module("PIL.ImageCms")  # for colours in LAB
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # each would have a stack, which counts as memory
    return {"about": about, "pixels": pixels}


def about(file: BinaryIO) -> Iterator[dict[str, Any]]:
    """How large it is as it will be seen, and how it is turned."""
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
    """What EXIF says, 1 where it says nothing that can be read. A PNG is asked only for what came
    before its pixels: Pillow would decode it to look further. A TIFF it turns itself."""
    if image.format not in ("JPEG", "WEBP", "AVIF") and "exif" not in image.info:
        return 1
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # Pillow's, over bytes that anyone may have written
        return 1
