"""LLaVA-NeXT: an image is put on the best of some grids of tiles, and shown once more as a whole;
rows that stand for the padding of the grid are left out, and one is added behind each line."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from quire.families.media.family import MediaConfig, MediaFamily
from quire.families.media.pixels import (
    BICUBIC,
    centre_cropped,
    pixels_of,
    resized,
    with_shortest_edge,
)
from quire.families.media.rules import CLIP_MEAN, CLIP_STD, Bytes, Normalised, Placed

if TYPE_CHECKING:
    from PIL.Image import Image

PINPOINTS = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))


@dataclass(frozen=True, slots=True)
class GridImages:
    """`grids` (height, width) are made of tiles of side `tile`, of `patches` rows a line."""

    pad: str
    grids: tuple[tuple[int, int], ...]
    tile: int
    patches: int
    resample: int
    normalised: Normalised
    base: int  # rows of the whole
    two_way: bool = False

    @property
    def placeholder(self) -> str:
        return self.pad

    def place(self, width: int, height: int, *, together: int) -> Placed:
        high, wide = best_grid(width, height, self.grids)
        lines, columns = unpadded(
            *(width, height),
            *(high // self.tile * self.patches, wide // self.tile * self.patches),
        )
        return Placed(self.pad, (self.base + lines * (columns + 1),))

    def num_bytes(self, width: int, height: int, *, together: int) -> int:
        high, wide = best_grid(width, height, self.grids)
        return 3 * (high * wide + self.tile**2)

    def prepare(self, image: Image, *, together: int) -> dict[str, npt.NDArray[Any]]:
        width, height = image.size
        grid = best_grid(width, height, self.grids)
        tiles = tiles_of(image, grid, self.tile, self.resample)
        whole = resized(image, self.tile, self.tile, self.resample)
        every = [self._squared(one) for one in (pixels_of(whole), *tiles)]
        return {"pixels": np.stack(every), "size": np.array([height, width], np.int64)}

    def _squared(self, tile: Bytes) -> Bytes:
        """A tile at the edge of a grid that tiles do not divide is smaller."""
        if tile.shape == (3, self.tile, self.tile):
            return tile
        from PIL import Image as images

        image = images.fromarray(tile.transpose(1, 2, 0))
        size = with_shortest_edge(*image.size, self.tile)
        return centre_cropped(pixels_of(resized(image, *size, self.resample)), self.tile, self.tile)


def best_grid(width: int, height: int, grids: tuple[tuple[int, int], ...]) -> tuple[int, int]:
    """The (height, width) that keeps most of an image's pixels, and of those the smallest."""
    best, most, least = grids[0], 0.0, inf
    for high, wide in grids:
        scale = min(wide / width, high / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        wasted = wide * high - kept
        if kept > most or (kept == most and wasted < least):
            best, most, least = (high, wide), kept, wasted
    return best


def unpadded(width: int, height: int, lines: int, columns: int) -> tuple[int, int]:
    """Of so many lines and columns of rows, those that show the image and not what surrounds it."""
    if width / height > columns / lines:
        shown = int(round(height * (columns / width), 7))
        return lines - (lines - shown) // 2 * 2, columns
    shown = int(round(width * (lines / height), 7))
    return lines, columns - (columns - shown) // 2 * 2


def tiles_of(image: Image, grid: tuple[int, int], tile: int, resample: int) -> list[Bytes]:
    """The image as large as it fits on the grid, in its middle, cut into tiles."""
    (width, height), (high, wide) = image.size, grid
    if wide / width < high / height:
        size = wide, min(ceil(height * (wide / width)), high)
    else:
        size = min(ceil(width * (high / height)), wide), high
    pixels = pixels_of(resized(image, *size, resample))
    on_grid = np.zeros((3, high, wide), np.uint8)
    left, top = (wide - size[0]) // 2, (high - size[1]) // 2
    on_grid[:, top : top + size[1], left : left + size[0]] = pixels
    return [
        on_grid[:, y : y + tile, x : x + tile]
        for y in range(0, high, tile)
        for x in range(0, wide, tile)
    ]


def read_grids(config: MediaConfig) -> tuple[tuple[int, int], ...]:
    given = config.processor.values.get("image_grid_pinpoints")
    given = given or config.model.values.get("image_grid_pinpoints") or PINPOINTS
    return tuple((int(high), int(wide)) for high, wide in given)


def read(config: MediaConfig) -> GridImages:
    said, vision = config.processor, config.model.inner("vision_config")
    tile = config.side("crop_size", config.side("size", 336))
    patches = tile // vision.count("patch_size", 14)
    kept = config.model.word("vision_feature_select_strategy", "default")
    return GridImages(
        pad=config.token("image_token_index", "image_token_id", unsaid="<image>"),
        grids=read_grids(config),
        tile=tile,
        patches=patches,
        resample=said.values.get("resample") or BICUBIC,
        normalised=Normalised.of(said.values, CLIP_MEAN, CLIP_STD),
        base=patches**2 + (1 if kept == "full" else 0),
    )


FAMILY = MediaFamily(
    name="llava_next",
    architectures=("LlavaNextForConditionalGeneration",),
    read=read,
    module="LlavaNextModel",
)
