"""LLaVA-NeXT and LLaVA-OneVision: an image is put on the best of several grids of tiles, after the
whole image as one tile. Rows for the grid's padding are left out, and a row is added after each
line. LLaVA-OneVision reduces the rows of many tiles, and shows an image that is not alone in its
prompt as one square."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, inf, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from quire.families.fields import Fields
from quire.families.media import square_videos
from quire.families.media.family import MediaConfig, MediaFamily
from quire.families.media.llava import CLIP_SIDE, num_more_rows
from quire.families.media.pixels import (
    BICUBIC,
    centre_cropped,
    check_enlarged,
    filter_of,
    pixels_of,
    resized,
    squared,
    with_shortest_edge,
)
from quire.families.media.rules import (
    CLIP_MEAN,
    CLIP_STD,
    Bytes,
    Normalised,
    PaddedImages,
    Placed,
    background_of,
)

if TYPE_CHECKING:
    from PIL.Image import Image

_GRIDS, _MOST_ALONG = "image_grid_pinpoints", 1 << 16
_MOST_PIXELS = 1 << 26  # of a grid: 200 MB
_MOST_TILES = 4096  # of anyres_max_N
PINPOINTS = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))
ONEVISION_SIDES = range(384, 2305, 384)
SHRUNK_ABOVE = 1.1  # times the side of `most_tiles` tiles


@dataclass(frozen=True, slots=True, kw_only=True)
class GridImages(PaddedImages):
    """`grids` (height, width) are divided into tiles of side `tile`, with `patches` rows a line.

    `most_tiles`: rows of more tiles than this are reduced to so many; None: never. `background`:
    colour of the square for an image that is not alone in its prompt; None: it is put on a grid,
    too."""

    grids: tuple[tuple[int, int], ...]
    tile: int
    patches: int
    most_tiles: int | None = None
    background: tuple[int, ...] | None = None

    def place(self, width: int, height: int, *, together: int) -> Placed:
        if self._square(together) is not None:
            check_enlarged((width, height), (max(width, height),) * 2)
            return Placed(self.pad, (self.patches**2 + 1,))
        high, wide = best_grid(width, height, self.grids)
        lines, columns = unpadded(
            *(width, height),
            *(high // self.tile * self.patches, wide // self.tile * self.patches),
        )
        if self.most_tiles is not None:
            lines, columns = shrunk(lines, columns, self.patches * sqrt(self.most_tiles))
        return Placed(self.pad, (self.patches**2 + lines * (columns + 1),))

    def num_bytes(self, width: int, height: int, *, together: int) -> int:
        if self._square(together) is not None:
            return 3 * self.tile**2
        high, wide = best_grid(width, height, self.grids)
        return 3 * (high * wide + self.tile**2)

    def prepare(self, image: Image, *, together: int) -> dict[str, npt.NDArray[Any]]:
        width, height = image.size
        tiles: list[Bytes] = []
        if (colour := self._square(together)) is not None:
            image = squared(image, colour)
        else:
            grid = best_grid(width, height, self.grids)
            tiles = tiles_of(image, grid, self.tile, self.resample)
        whole = resized(image, self.tile, self.tile, self.resample)
        every = [self._squared(one) for one in (pixels_of(whole), *tiles)]
        return {"pixels": np.stack(every), "size": np.array([height, width], np.int64)}

    def _square(self, together: int) -> tuple[int, ...] | None:
        """The colour of the square that an image is put on; None for an image on a grid."""
        return self.background if together > 1 else None

    def _squared(self, tile: Bytes) -> Bytes:
        """Make a tile square: at the edge of a grid that tiles do not divide it is smaller."""
        if tile.shape == (3, self.tile, self.tile):
            return tile
        from PIL import Image as images

        image = images.fromarray(tile.transpose(1, 2, 0))
        size = with_shortest_edge(*image.size, self.tile)
        return centre_cropped(pixels_of(resized(image, *size, self.resample)), self.tile, self.tile)


def best_grid(width: int, height: int, grids: tuple[tuple[int, int], ...]) -> tuple[int, int]:
    """The (height, width) that keeps most of the image's pixels, and of several the smallest."""
    best, most, least = grids[0], 0.0, inf
    for high, wide in grids:
        scale = min(wide / width, high / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        wasted = wide * high - kept
        if kept > most or (kept == most and wasted < least):
            best, most, least = (high, wide), kept, wasted
    return best


def unpadded(width: int, height: int, lines: int, columns: int) -> tuple[int, int]:
    """Lines and columns of rows without those that only show the padding around the image."""
    if width / height > columns / lines:
        shown = int(round(height * (columns / width), 7))
        return lines - (lines - shown) // 2 * 2, columns
    shown = int(round(width * (lines / height), 7))
    return lines, columns - (columns - shown) // 2 * 2


def shrunk(lines: int, columns: int, side: float) -> tuple[int, int]:
    """Lines and columns of rows, reduced if they are many more than a square of this side."""
    ratio = sqrt(lines * columns / side**2)
    if ratio > SHRUNK_ABOVE:
        return int(lines // ratio), int(columns // ratio)
    return lines, columns


def tiles_of(image: Image, grid: tuple[int, int], tile: int, resample: int) -> list[Bytes]:
    """The image, as large as fits on the grid, in its middle, cut into tiles."""
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


def read_grids(
    config: MediaConfig, unsaid: Iterable[Any], tile: int
) -> tuple[tuple[int, int], ...]:
    said = next((x for x in (config.processor, config.model) if x.values.get(_GRIDS)), None)
    if said is None:
        said = Fields({_GRIDS: [list(grid) for grid in unsaid]}, config.processor.source)
    given = said.values[_GRIDS]
    grids: list[Any] = given if isinstance(given, list) else [None]
    if not all(isinstance(one, list) and len(one) == 2 for one in grids) or not all(
        type(side) is int and 0 < side <= _MOST_ALONG for one in grids for side in one
    ):
        raise said.wrong(_GRIDS, f"a list of heights and widths, from 1 to {_MOST_ALONG:,}")
    if any(min(grid) < tile for grid in grids):
        raise said.wrong(_GRIDS, f"grids of at least one tile, whose side (size) is {tile}")
    if any(high * wide > _MOST_PIXELS for high, wide in grids):
        raise said.wrong(_GRIDS, f"grids of at most {_MOST_PIXELS:,} pixels")
    return tuple((high, wide) for high, wide in grids)


def read(config: MediaConfig) -> GridImages:
    rules, said = _read(config, "clip", "default", PINPOINTS, CLIP_SIDE), config.processor
    crops = "do_center_crop" not in said.values or said.flag("do_center_crop", False)
    if crops and config.side("crop_size", CLIP_SIDE, "shortest_edge") != rules.tile:
        raise said.wrong("crop_size", f"as large as size, and is {CLIP_SIDE} where it is left out")
    return rules


def read_onevision(config: MediaConfig) -> GridImages:
    named = config.model.word("vision_aspect_ratio", "anyres_max_9")
    most = named.removeprefix("anyres_max_")
    if not (most.isdecimal() and len(most) <= 4 and 1 <= int(most) <= _MOST_TILES):
        rule = f"anyres_max_ and a number from 1 to {_MOST_TILES:,}"
        raise config.model.wrong("vision_aspect_ratio", rule)
    grids = product(ONEVISION_SIDES, ONEVISION_SIDES)
    rules = _read(config, "siglip", "full", grids, ONEVISION_SIDES.start)
    if config.processor.flag("do_center_crop", False):
        raise config.processor.wrong("do_center_crop", "false: tiles are read whole")
    if any(side % rules.tile for grid in rules.grids for side in grid):
        raise config.processor.wrong(_GRIDS, f"multiples of {rules.tile}, the side of a tile")
    return replace(rules, most_tiles=int(most), background=background_of(config.processor))


def _read(
    config: MediaConfig, tower: str, kept: str, grids: Iterable[Any], side: int
) -> GridImages:
    """The rules; `tower`, `kept` (see num_more_rows), `grids` and the `side` of a tile are
    defaults."""
    said, vision = config.processor, config.model.inner("vision_config")
    tile = config.side("size", side, "shortest_edge")
    if num_more_rows(config, tower, kept):
        rule = "what leaves the rows of a tile's patches alone: 'full' for SigLIP, else 'default'"
        raise config.model.wrong("vision_feature_select_strategy", rule)
    config.check_patch(patch := vision.count("patch_size", 14))
    patches = config.patches_along(tile, patch, "size")
    return GridImages(
        pad=config.token("image_token_index", "image_token_id", unsaid="<image>"),
        grids=read_grids(config, grids, tile),
        tile=tile,
        patches=patches,
        resample=filter_of(said, BICUBIC),
        normalised=Normalised.of(said, CLIP_MEAN, CLIP_STD),
    )


FAMILY = MediaFamily(
    name="llava_next",
    architectures=("LlavaNextForConditionalGeneration",),
    read=read,
    module="LlavaNextModel",
)
ONEVISION = MediaFamily(
    name="llava_onevision",
    architectures=("LlavaOnevisionForConditionalGeneration",),
    read=read_onevision,
    read_videos=square_videos.read,
    module="LlavaOnevisionModel",
    options=("num_frames",),
)
