"""Gemma 4: an image keeps its shape and becomes about as large as its rows allow; squares of
patches are one row each. In some sizes of the model its tokens see each other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import floor, sqrt
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from quire.families.media.family import MOST_OF_ROW, MediaConfig, MediaFamily, check_same
from quire.families.media.pixels import BICUBIC, filter_of, pixels_of, resized
from quire.families.media.rules import Normalised, PaddedImages, Placed

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_ROWS = (70, 140, 280, 560, 1120)  # of an image; the model was trained with these


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledImages(PaddedImages):
    """A square of side `unit` is one row, and an image has at most `most`. They are between the
    tokens `begin` and `end`."""

    begin: str
    end: str
    unit: int
    most: int

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Width and height that an image is resized to: no side is less than a unit."""
        factor = sqrt(self.most * self.unit**2 / (width * height))
        wide, high = (floor(factor * side / self.unit) for side in (width, height))
        if high == 0:
            wide, high = min(width // height, self.most), 1
        elif not wide:
            wide, high = 1, min(height // width, self.most)
        return wide * self.unit, high * self.unit

    def place(self, width: int, height: int, *, together: int) -> Placed:
        wide, high = self.size(width, height)
        return Placed(f"{self.begin}{self.pad}{self.end}", (wide * high // self.unit**2,))

    def num_bytes(self, width: int, height: int, *, together: int) -> int:
        wide, high = self.size(width, height)
        return 3 * wide * high

    def prepare(self, image: Image, *, together: int) -> dict[str, npt.NDArray[Any]]:
        pixels = pixels_of(resized(image, *self.size(*image.size), self.resample))
        return {"pixels": pixels[None]}


def read(config: MediaConfig, *, unsaid: str = "") -> PooledImages:
    """`unsaid`: which tokens see later ones where the config leaves it out."""
    said = config.processor.under({}, do_normalize=False)
    vision, text = config.model.inner("vision_config"), config.model.inner("text_config")
    patch = vision.count("patch_size", 16, most=MOST_OF_ROW)
    pooled = vision.count("pooling_kernel_size", 3, most=MOST_OF_ROW // patch)
    for key, usual in {"patch_size": 16, "pooling_kernel_size": 3}.items():
        check_same(said.under({}, **{key: usual}), key, vision.count(key, usual))
    most = said.count("max_soft_tokens", 280)
    if most not in MOST_ROWS:
        raise said.wrong("max_soft_tokens", f"one of {', '.join(map(str, MOST_ROWS))}")
    return PooledImages(
        pad=config.token("image_token_id", unsaid="<|image|>"),
        begin=config.token("boi_token_id", unsaid="<|image>"),
        end=config.token("eoi_token_id", unsaid="<image|>"),
        unit=patch * pooled,
        most=most,
        resample=filter_of(said, BICUBIC),
        normalised=Normalised.of(said, 0.0, 1.0),
        two_way=text.values.get("use_bidirectional_attention", unsaid) == "vision",
    )


FAMILY = MediaFamily(
    name="gemma4",
    architectures=("Gemma4ForConditionalGeneration",),
    read=read,
    module="Gemma4Model",
    options=("max_soft_tokens",),
    embedded=False,
    unused=("audio_config",),
)
# Without an encoder: a product makes a row of a square's pixels.
UNIFIED = MediaFamily(
    name="gemma4_unified",
    architectures=("Gemma4UnifiedForConditionalGeneration",),
    read=partial(read, unsaid="vision"),
    module="Gemma4UnifiedModel",
    options=("max_soft_tokens",),
    embedded=False,
    unused=("audio_config",),
)
