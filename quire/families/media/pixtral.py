"""Pixtral and Mistral 3: an image keeps its shape; its sides become multiples of a patch, the
longer one bounded. Its rows are in lines, with a token after each line."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, floor
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from quire.families.fields import MAX_COUNT
from quire.families.media.family import MOST_OF_ROW, MediaConfig, MediaFamily
from quire.families.media.pixels import BICUBIC, filter_of, pixels_of, resized
from quire.families.media.rules import CLIP_MEAN, CLIP_STD, Normalised, PaddedImages, Placed

if TYPE_CHECKING:
    from PIL.Image import Image

BREAK, END = "[IMG_BREAK]", "[IMG_END]"  # after a line of rows, and after the last


@dataclass(frozen=True, slots=True, kw_only=True)
class LinedImages(PaddedImages):
    """A square of side `unit` is one row. Sides are at most `edge`, rounded up to a multiple of
    `unit`."""

    unit: int
    edge: int

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Width and height that an image is resized to."""
        ratio = max(width / self.edge, height / self.edge)
        if ratio > 1:
            width, height = max(1, floor(width / ratio)), max(1, floor(height / ratio))
        return ceil(width / self.unit) * self.unit, ceil(height / self.unit) * self.unit

    def place(self, width: int, height: int, *, together: int) -> Placed:
        wide, high = self.size(width, height)
        lines, columns = high // self.unit, wide // self.unit
        text = f"{self.pad}{BREAK}" * (lines - 1) + f"{self.pad}{END}"
        return Placed(text, (columns,) * lines)

    def num_bytes(self, width: int, height: int, *, together: int) -> int:
        wide, high = self.size(width, height)
        return 3 * wide * high

    def prepare(self, image: Image, *, together: int) -> dict[str, npt.NDArray[Any]]:
        wide, high = self.size(*image.size)
        pixels = pixels_of(resized(image, wide, high, self.resample))
        return {"pixels": pixels[None], "size": np.array([high, wide], np.int64)}


def read(config: MediaConfig) -> LinedImages:
    said, vision = config.processor, config.model.inner("vision_config")
    patch = vision.count("patch_size", 16, most=MOST_OF_ROW)
    merged = config.model.count("spatial_merge_size", 1, most=MOST_OF_ROW // patch)
    config.check_patch(patch, merged=merged)
    if said.flag("do_center_crop", False):
        raise said.wrong("do_center_crop", "false: every image is read whole")
    return LinedImages(
        pad=config.token("image_token_index", "image_token_id", unsaid="[IMG]"),
        unit=patch * merged,
        edge=config.side("size", 1024, "longest_edge", most=MAX_COUNT),
        resample=filter_of(said, BICUBIC),
        normalised=Normalised.of(said, CLIP_MEAN, CLIP_STD),
    )


def read_mistral3(config: MediaConfig) -> LinedImages:
    return read(replace(config, model=config.model.under({}, spatial_merge_size=2)))


# The architecture of LLaVA 1.5, with another tower.
LLAVA = MediaFamily(
    name="pixtral",
    architectures=("LlavaForConditionalGeneration",),
    read=read,
    module="LlavaModel",
    options=("size",),
    embedded=False,
    tower="pixtral",
)
MISTRAL3 = MediaFamily(
    name="mistral3",
    architectures=("Mistral3ForConditionalGeneration",),
    read=read_mistral3,
    module="Mistral3Model",
    options=("size",),
    embedded=False,
)
