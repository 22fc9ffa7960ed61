"""Functions for Pillow images: change their mode, or encode them for a URL."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING

from quire.inputs.media.images import rgb

if TYPE_CHECKING:
    from PIL.Image import Image


def convert_image_mode(image: Image, to_mode: str) -> Image:
    """Change the mode; in RGB transparent pixels become white, as in all images quire reads."""
    return rgb(image) if to_mode == "RGB" else image.convert(to_mode)


def encode_image_base64(
    image: Image, *, image_mode: str | None = "RGB", format: str = "PNG"
) -> str:
    """The image as a file of this format, in base64; `image_mode=None` keeps its mode."""
    written = io.BytesIO()
    shown = image if image_mode is None else convert_image_mode(image, image_mode)
    shown.save(written, format)
    return base64.b64encode(written.getvalue()).decode()


def encode_image_url(image: Image, *, image_mode: str | None = "RGB", format: str = "PNG") -> str:
    """A data: URL of the image, for the image_url of a message."""
    encoded = encode_image_base64(image, image_mode=image_mode, format=format)
    return f"data:image/{format.lower()};base64,{encoded}"
