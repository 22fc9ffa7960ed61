"""Images as callers pass them: checked by their headers, hashed, and opened as RGB when needed.

Nothing is decoded before its header was checked. An image from a file or bytes is rotated as its
EXIF data says; Pillow images and arrays are not rotated.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from quire.errors import NotSupported
from quire.inputs.media.allowed import bad_medium
from quire.inputs.media.children import MediaChildren
from quire.inputs.media.decoders import DECODERS
from quire.inputs.media.files import read_file, reading
from quire.inputs.media.identity import content_hash

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_PIXELS = 178_956_970
MOST_RATIO = 200
MOST_BYTES = 256 << 20  # of an encoded image
_PLAIN_MODES = ("1", "L", "RGB", "RGBX", "YCbCr", "LAB", "HSV", "CMYK")
_CHANNELS = (1, 3, 4)  # grey, RGB, RGB with transparency
bad = partial(bad_medium, "image")


class ImageSource(Protocol):
    """One image: the hash of its content, its size, and its pixels on request."""

    @property
    def content(self) -> bytes:
        """A hash of everything that determines its pixels."""

    @property
    def size(self) -> tuple[int, int]:
        """Width and height after rotation."""

    def open(self) -> Image:
        """Return the image in RGB."""


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """An image in bytes, or in a file, which is read again when the image is opened."""

    data: bytes | Path
    content: bytes
    size: tuple[int, int]
    turn: int | None  # by EXIF
    children: MediaChildren

    @classmethod
    def of(cls, data: bytes | Path, children: MediaChildren) -> EncodedImage:
        raw = data if isinstance(data, bytes) else read_file(data, MOST_BYTES)
        if len(raw) > MOST_BYTES:
            raise bad(f"has {len(raw):,} bytes; at most {MOST_BYTES:,} are read")
        content = content_hash(b"encoded", raw)
        found = children.header("image", raw, content)
        return cls(data, content, checked_size(*found["size"]), found["turn"], children)

    def open(self) -> Image:
        raw = self.data if isinstance(self.data, bytes) else read_file(self.data, MOST_BYTES)
        if not isinstance(self.data, bytes) and content_hash(b"encoded", raw) != self.content:
            raise bad(f"{self.data.name} changed while the prompts were computed")
        pixels = self.children.one("image", "pixels", raw, turn=self.turn)
        if pixels.shape != (*self.size[::-1], 3):
            raise bad(f"has pixels of shape {pixels.shape}, and its header says {self.size}")
        opened: Image = images().fromarray(pixels)
        return opened


@dataclass(frozen=True, slots=True)
class OpenImage:
    image: Image
    content: bytes
    size: tuple[int, int]

    @classmethod
    def of(cls, image: Image) -> OpenImage:
        checked_size(*image.size)
        with reading(bad):
            palette = image.getpalette("RGBA") if image.mode in ("P", "PA") else None
            clear = image.info.get("transparency")
            about = f"{image.mode} {image.size} {palette} {clear!r}".encode()
            return cls(image, content_hash(about, image.tobytes()), image.size)

    def open(self) -> Image:
        with reading(bad):
            return rgb(self.image)


@dataclass(frozen=True, slots=True, eq=False)
class ArrayImage:
    """Pixels as bytes, [height, width, 3]. Callers may pass [3, height, width], or [height, width]
    of greys, or 1 or 4 (RGB with transparency) in place of the 3 channels."""

    pixels: npt.NDArray[np.uint8]
    content: bytes
    size: tuple[int, int]

    @classmethod
    def of(cls, given: npt.NDArray[Any]) -> ArrayImage:
        if given.dtype != np.uint8:
            ways = {"f": "(255 * array).round()", "b": "(255 * array)"}
            how = ways.get(given.dtype.kind, "array")
            if given.dtype == np.uint16 and given.max(initial=0) > 255:
                how = "(array >> 8)"  # a plain cast would keep only the low byte
            raise bad(
                f"is an array of {given.dtype}; pixels are bytes from 0 to 255: "
                f"pass {how}.astype('uint8')"
            )
        if given.ndim == 2:
            given = given[:, :, None]
        if given.ndim == 3 and given.shape[2] not in _CHANNELS and given.shape[0] in _CHANNELS:
            given = given.transpose(1, 2, 0)
        if given.ndim != 3 or given.shape[2] not in _CHANNELS:
            raise bad(
                f"is an array of shape {given.shape}; it should be [height, width, 3], "
                "[3, height, width], or [height, width] of greys"
            )
        if given.shape[2] == 1:
            given = given.repeat(3, 2)
        pixels = np.array(given)  # a copy: the caller may change the original
        size = checked_size(pixels.shape[1], pixels.shape[0])
        return cls(pixels, content_hash(f"array {pixels.shape}".encode(), pixels.tobytes()), size)

    def open(self) -> Image:
        return rgb(images().fromarray(self.pixels))


def images() -> Any:
    """Pillow's Image module. If it is missing, NotSupported says how to install it."""
    try:
        from PIL import Image
    except ImportError:
        raise NotSupported(DECODERS["image"].missing) from None
    return Image


def is_pillow(value: object) -> bool:
    return any(kind.__module__.startswith("PIL.") for kind in type(value).__mro__)


def checked_size(width: int, height: int, *, kind: str = "image") -> tuple[int, int]:
    size = f"{width} x {height} pixels"
    if width < 1 or height < 1:
        raise bad_medium(kind, f"is {size}; either side has one at least")
    if width * height > MOST_PIXELS:
        raise bad_medium(kind, f"has {size}; at most {MOST_PIXELS:,} are read")
    if max(width, height) > MOST_RATIO * min(width, height):
        raise bad_medium(kind, f"is {size}; one side is at most {MOST_RATIO} times the other")
    return width, height


def rgb(image: Image) -> Image:
    """The image in RGB: transparent pixels become white, 16-bit channels become 8-bit."""
    mode, clear = image.mode, image.info.get("transparency")
    if mode == "I" or mode.startswith("I;16"):
        grey: Image = images().fromarray(_eight_bits(np.asarray(image), mode, clear)).convert("RGB")
        return grey
    if mode in ("RGBA", "LA", "PA", "RGBa", "La") or clear is not None:
        layer = image.convert("RGBA")
        white = images().new("RGBA", layer.size, (255, 255, 255, 255))
        flat: Image = images().alpha_composite(white, layer).convert("RGB")
        return flat
    if mode == "RGB":
        return image
    if mode == "P" or mode in _PLAIN_MODES:
        return image.convert("RGB")
    raise bad(f"is of mode {mode!r}, which quire does not read; convert it to RGB")


def _eight_bits(wide: npt.NDArray[Any], mode: str, clear: object) -> npt.NDArray[np.uint8]:
    """Convert 16-bit greys to bytes. Pillow itself would clip values above 255."""
    least, most = int(wide.min(initial=0)), int(wide.max(initial=0))
    if most > 0xFFFF or least < 0:
        raise bad(f"has numbers from {least} to {most}; 16 bits are read at most")
    bits = 0 if mode == "I" and most <= 0xFF else 8  # mode I may hold 8-bit or 16-bit values
    made = (wide >> bits).astype(np.uint8)
    return made if clear is None else np.where(wide == clear, np.uint8(255), made)
