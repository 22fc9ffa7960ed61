"""LLaVA 1.5: an image is one square, cut from its middle, and always the same number of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from quire.families.media.family import MediaConfig, MediaFamily
from quire.families.media.pixels import (
    BICUBIC,
    centre_cropped,
    pixels_of,
    resized,
    squared,
    with_shortest_edge,
)
from quire.families.media.rules import CLIP_MEAN, CLIP_STD, Normalised, PaddedImages, Placed

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True, slots=True, kw_only=True)
class LlavaImages(PaddedImages):
    """`edge` is what the shorter side is made, `crop` the side of the square; `count` its rows."""

    edge: int
    crop: int
    count: int
    background: tuple[int, ...] | None  # of the square that an image is put on first, if any

    def place(self, width: int, height: int, *, together: int) -> Placed:
        return Placed(self.pad, (self.count,))

    def num_bytes(self, width: int, height: int, *, together: int) -> int:
        return 3 * self.crop**2

    def prepare(self, image: Image, *, together: int) -> dict[str, npt.NDArray[Any]]:
        if self.background is not None:
            image = squared(image, self.background)
        size = with_shortest_edge(*image.size, self.edge)
        pixels = pixels_of(resized(image, *size, self.resample))
        return {"pixels": centre_cropped(pixels, self.crop, self.crop)[None]}


def read(config: MediaConfig) -> LlavaImages:
    said, vision = config.processor, config.model.inner("vision_config")
    crop = config.side("crop_size", config.side("size", 336))
    patch = vision.count("patch_size", 14)
    normalised = Normalised.of(said, CLIP_MEAN, CLIP_STD)
    kept = config.model.word("vision_feature_select_strategy", "default")
    count = (crop // patch) ** 2 + (1 if kept == "full" else 0)
    background = tuple(int(one * 255) for one in normalised.mean)
    return LlavaImages(
        pad=config.token("image_token_index", "image_token_id", unsaid="<image>"),
        edge=config.side("size", 336),
        crop=crop,
        resample=said.values.get("resample") or BICUBIC,
        count=count,
        background=background if said.flag("do_pad", False) else None,
        normalised=normalised,
    )


FAMILY = MediaFamily(
    name="llava", architectures=("LlavaForConditionalGeneration",), read=read, module="LlavaModel"
)
