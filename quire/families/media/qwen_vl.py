"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: an image keeps its shape, its sides made multiples of a patch
that stands for one token, within bounds of its area."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from quire.families.fields import Fields
from quire.families.media.family import MediaConfig
from quire.families.media.pixels import BICUBIC, pixels_of, resized
from quire.families.media.rules import CLIP_MEAN, CLIP_STD, Normalised, PaddedImages, Placed

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapedImages(PaddedImages):
    """Patches of side `patch`, of which `merge` by `merge` are one token."""

    patch: int
    merge: int
    least: int  # pixels
    most: int

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Width and height that an image is made."""
        unit = self.patch * self.merge
        wide, high = round(width / unit) * unit, round(height / unit) * unit
        if wide * high > self.most:
            scale = sqrt(height * width / self.most)
            high = max(unit, floor(height / scale / unit) * unit)
            wide = max(unit, floor(width / scale / unit) * unit)
        elif wide * high < self.least:
            scale = sqrt(self.least / (height * width))
            high, wide = ceil(height * scale / unit) * unit, ceil(width * scale / unit) * unit
        return wide, high

    def place(self, width: int, height: int, *, together: int) -> Placed:
        wide, high = self.size(width, height)
        unit = self.patch * self.merge
        grid = (1, high // unit, wide // unit)
        return Placed(self.pad, (grid[1] * grid[2],), grid)

    def num_bytes(self, width: int, height: int, *, together: int) -> int:
        wide, high = self.size(width, height)
        return 3 * wide * high

    def prepare(self, image: Image, *, together: int) -> dict[str, npt.NDArray[Any]]:
        size = self.size(*image.size)
        return {"pixels": np.ascontiguousarray(pixels_of(resized(image, *size, self.resample)))}


def read(config: MediaConfig) -> ShapedImages:
    pad = config.token("image_token_id", unsaid="<|image_pad|>")
    return read_shaped(config.processor, config.model.inner("vision_config"), pad)


def read_shaped(said: Fields, vision: Fields, pad: str) -> ShapedImages:
    patch = said.count("patch_size", vision.count("patch_size", 14))
    merge = said.count("merge_size", vision.count("spatial_merge_size", 2))
    size = said.inner("size")
    least = said.count("min_pixels", size.count("shortest_edge", 56 * 56))
    most = said.count("max_pixels", size.count("longest_edge", 28 * 28 * 1280))
    return ShapedImages(
        pad=pad,
        patch=patch,
        merge=merge,
        least=least,
        most=most,
        resample=said.values.get("resample") or BICUBIC,
        normalised=Normalised.of(said, CLIP_MEAN, CLIP_STD),
    )
