"""Gemma 3: an image is one square, and its tokens see each other. With pan and scan a long image is
followed by crops of it."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from quire.families.media.family import MediaConfig, MediaFamily
from quire.families.media.pixels import BILINEAR, filter_of, pixels_of, resized
from quire.families.media.rules import Normalised, Placed

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True, slots=True)
class PanAndScan:
    """Cuts an image whose longer side is at least `least_ratio` times the other along that side
    into up to `most` pieces, none with a side shorter than `least_side`."""

    least_side: int = 256
    most: int = 4
    least_ratio: float = 1.2

    def pieces(self, width: int, height: int) -> list[tuple[int, int, int, int]]:
        """(left, top, right, bottom) of each piece; empty if the image is not cut."""
        long, short = max(width, height), min(width, height)
        if long / short < self.least_ratio:
            return []
        count = min(floor(long / short + 0.5), floor(long / self.least_side))
        count = min(self.most, max(2, count))
        size = ceil(long / count)
        if min(size, short) < self.least_side:
            return []
        cuts = [(at, min(at + size, long)) for at in range(0, count * size, size)]
        if width >= height:
            return [(first, 0, last, height) for first, last in cuts]
        return [(0, first, width, last) for first, last in cuts]


@dataclass(frozen=True, slots=True)
class SquareImages:
    """An image is a square of side `side` with `count` rows, between the tokens `begin` and
    `end`."""

    pad: str
    begin: str
    end: str
    side: int
    count: int
    resample: int
    normalised: Normalised
    pan_and_scan: PanAndScan | None
    two_way: bool = True

    @property
    def placeholder(self) -> str:
        return self.begin

    def place(self, width: int, height: int, *, together: int) -> Placed:
        one = f"\n\n{self.begin}{self.pad}{self.end}\n\n"
        pieces = len(self._pieces(width, height))
        if not pieces:
            return Placed(one, (self.count,))
        text = f"Here is the original image {one} and here are some crops to help you see better "
        return Placed(text + " ".join([one] * pieces), (self.count,) * (1 + pieces))

    def num_bytes(self, width: int, height: int, *, together: int) -> int:
        return 3 * self.side**2 * (1 + len(self._pieces(width, height)))

    def prepare(self, image: Image, *, together: int) -> dict[str, npt.NDArray[Any]]:
        every = [image, *(image.crop(piece) for piece in self._pieces(*image.size))]
        squares = [resized(one, self.side, self.side, self.resample) for one in every]
        return {"pixels": np.stack([pixels_of(square) for square in squares])}

    def _pieces(self, width: int, height: int) -> list[tuple[int, int, int, int]]:
        return [] if self.pan_and_scan is None else self.pan_and_scan.pieces(width, height)


def read(config: MediaConfig) -> SquareImages:
    said, side = config.processor, config.side("size", 224)
    config.check_patch(patch := config.model.inner("vision_config").count("patch_size", 16))
    config.patches_along(side, patch, "size")
    pieces = PanAndScan(
        said.count("pan_and_scan_min_crop_size", 256),
        said.count("pan_and_scan_max_num_crops", 4),
        said.positive("pan_and_scan_min_ratio_to_activate", 1.2),
    )
    return SquareImages(
        pad=config.token("image_token_index", "image_token_id", unsaid="<image_soft_token>"),
        begin=config.token("boi_token_index", "boi_token_id", unsaid="<start_of_image>"),
        end=config.token("eoi_token_index", "eoi_token_id", unsaid="<end_of_image>"),
        side=side,
        count=config.model.count("mm_tokens_per_image", 256),
        resample=filter_of(said, BILINEAR),
        normalised=Normalised.of(said, 0.5, 0.5),
        # Only the caller decides this: Transformers ignores the processor's files here.
        pan_and_scan=pieces if config.asked.flag("do_pan_and_scan", False) else None,
    )


FAMILY = MediaFamily(
    name="gemma3",
    architectures=("Gemma3ForConditionalGeneration",),
    read=read,
    module="Gemma3Model",
    options=(
        "do_pan_and_scan",
        "pan_and_scan_min_crop_size",
        "pan_and_scan_max_num_crops",
        "pan_and_scan_min_ratio_to_activate",
    ),
)
