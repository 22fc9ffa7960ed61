"""InternVL in Transformers' form: an image is stretched to the grid of square tiles with the
nearest shape, followed by the whole image as one tile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from quire.families.fields import Fields
from quire.families.media.family import MediaConfig, MediaFamily
from quire.families.media.pixels import BICUBIC, filter_of, pixels_of, resized
from quire.families.media.rules import CLIP_MEAN, CLIP_STD, Normalised, PaddedImages, Placed

if TYPE_CHECKING:
    from PIL.Image import Image

BEGIN, END = "<img>", "</img>"
MOST_TILES = 1024  # most tiles that callers may ask for


@dataclass(frozen=True, slots=True, kw_only=True)
class StretchedImages(PaddedImages):
    """From `fewest` to `most` tiles of side `tile`, with `count` rows each."""

    tile: int
    count: int
    fewest: int
    most: int  # 1: an image is one square

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Columns and rows of tiles: the grid with the nearest shape, and of several the last, by
        number of tiles, with less than twice the image's pixels. (800, 400) -> (2, 1)"""
        best, least, shape = (1, 1), inf, width / height
        for columns, rows in _grids(self.fewest, self.most):
            off = abs(shape - columns / rows)
            fits = width * height > 0.5 * self.tile**2 * columns * rows
            if off < least or (off == least and fits):
                best, least = (columns, rows), off
        return best

    def place(self, width: int, height: int, *, together: int) -> Placed:
        text = f"{BEGIN}{self.pad}{END}"
        return Placed(text, (self.count * self._num_squares(width, height),))

    def num_bytes(self, width: int, height: int, *, together: int) -> int:
        return 3 * self.tile**2 * self._num_squares(width, height)

    def prepare(self, image: Image, *, together: int) -> dict[str, npt.NDArray[Any]]:
        (columns, rows), tile = self.grid(*image.size), self.tile
        whole = pixels_of(resized(image, tile, tile, self.resample))[None]
        if columns * rows == 1:
            return {"pixels": whole}
        pixels = pixels_of(resized(image, columns * tile, rows * tile, self.resample))
        cut = pixels.reshape(3, rows, tile, columns, tile).transpose(1, 3, 0, 2, 4)
        return {"pixels": np.concatenate([cut.reshape(-1, 3, tile, tile), whole])}

    def _num_squares(self, width: int, height: int) -> int:
        columns, rows = self.grid(width, height)
        return 1 if columns * rows == 1 else columns * rows + 1


@lru_cache(maxsize=64)
def _grids(fewest: int, most: int) -> tuple[tuple[int, int], ...]:
    """(columns, rows) of all grids with `fewest` to `most` tiles, smallest first."""
    sides = range(1, most + 1)
    grids = [(c, r) for c in sides for r in range(1, most // c + 1) if fewest <= c * r]
    return tuple(sorted(grids, key=lambda grid: grid[0] * grid[1]))


def read(config: MediaConfig) -> StretchedImages:
    said, vision = config.processor, config.model.inner("vision_config")
    tile = config.side("size", 384)
    config.check_patch(patch := _side(vision, "patch_size", 14))
    patches = config.patches_along(tile, patch, "size")
    along = int(patches * config.model.positive("downsample_ratio", 0.5, most=1.0))
    if not along:
        raise config.model.wrong("downsample_ratio", f"at least 1/{patches}, or a tile has no row")
    # Only the caller decides this: Transformers ignores the processor's files here.
    cut = config.asked.flag("crop_to_patches", True)
    most = said.count("max_patches", 12, most=MOST_TILES) if cut else 1
    return StretchedImages(
        pad=config.token("image_token_id", unsaid="<IMG_CONTEXT>"),
        tile=tile,
        count=along**2,
        fewest=said.count("min_patches", 1, most=most) if cut else 1,
        most=most,
        resample=filter_of(said, BICUBIC),
        normalised=Normalised.of(said, CLIP_MEAN, CLIP_STD),
    )


def _side(fields: Fields, key: str, unsaid: int) -> int:
    """The side of a square, which may be written as one number or as two."""
    value = fields.values.get(key)
    if isinstance(value, list | tuple) and value:
        values: Mapping[str, Any] = {key: value[0]}
        return Fields(values, fields.source).count(key)
    return fields.count(key, unsaid)


FAMILY = MediaFamily(
    name="internvl",
    architectures=("InternVLForConditionalGeneration",),
    read=read,
    module="InternVLModel",
    options=("crop_to_patches", "min_patches", "max_patches"),
)
